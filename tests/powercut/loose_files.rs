//! One file for each thing, written beside and renamed into place: shows that the power-cut tool
//! sees a missing sync of a file, and a missing sync of a directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::harness::{Acks, Subject};

const COUNT: usize = 40;

#[derive(Debug)]
pub(crate) struct LooseFiles {
    pub(crate) sync_file: bool,
    pub(crate) sync_dir: bool,
}

fn content(name: &str) -> String {
    name.repeat(700)
}

impl LooseFiles {
    fn fill(&self, dir: &Path, acks: &Acks) -> io::Result<()> {
        let things = dir.join("things");
        fs::create_dir(&things)?;
        // The new directory is itself a name in its parent.
        File::open(dir)?.sync_all()?;
        for i in 0..COUNT {
            let name = format!("thing-{i}");
            let temporary = things.join("temporary");
            let mut file = File::create(&temporary)?;
            file.write_all(content(&name).as_bytes())?;
            if self.sync_file {
                file.sync_all()?;
            }
            fs::rename(&temporary, things.join(&name))?;
            if self.sync_dir {
                File::open(&things)?.sync_all()?;
            }
            acks.ack(&name);
        }
        Ok(())
    }
}

impl Subject for LooseFiles {
    fn work(&self, dir: &Path, acks: &Acks) -> Result<(), String> {
        self.fill(dir, acks).map_err(|e| e.to_string())
    }

    fn verify(&self, dir: &Path, acked: &[String]) -> Result<(), String> {
        let things = dir.join("things");
        for i in 0..COUNT {
            let name = format!("thing-{i}");
            match fs::read_to_string(things.join(&name)) {
                Ok(text) if text == content(&name) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound && !acked.contains(&name) => {}
                Ok(text) => return Err(format!("{name} has {} bytes, or wrong ones", text.len())),
                Err(e) => return Err(format!("{name}: {e}")),
            }
        }
        Ok(())
    }
}

/// Not a store at all: makes the calls that are easily forgotten by a recorder. What it leaves is
/// compared with its trace by the harness, as for every subject.
#[derive(Debug)]
pub(crate) struct OddCalls;

impl OddCalls {
    fn fill(dir: &Path) -> io::Result<()> {
        use std::os::unix::fs::FileExt;

        let a = dir.join("a");
        let mut file = File::create(&a)?;
        let mut twin = file.try_clone()?;
        file.write_all(b"one ")?;
        twin.write_all(b"two ")?;
        let parts = [io::IoSlice::new(b"three "), io::IoSlice::new(b"four")];
        let _written = file.write_vectored(&parts)?;
        file.write_all_at(b"far", 5000)?;
        file.set_len(4097)?;
        file.set_len(9000)?;
        let mut more = File::options().append(true).open(&a)?;
        more.write_all(b"at the end")?;
        more.write_all_at(b"there too", 3)?;
        fs::copy(&a, dir.join("copy"))?;
        io::copy(&mut File::open(&a)?, &mut File::create(dir.join("copy 2"))?)?;
        File::create(dir.join("copy"))?.write_all(b"shorter")?;
        fs::hard_link(&a, dir.join("b"))?;
        fs::rename(&a, dir.join("b"))?;
        fs::create_dir_all(dir.join("x/y/z"))?;
        fs::write(dir.join("x/y/z/deep"), "deep")?;
        fs::rename(dir.join("x/y"), dir.join("y"))?;
        fs::write(dir.join("y/z/deeper"), "deeper")?;
        fs::rename(dir.join("y/z/deep"), dir.join("x/../moved"))?;
        fs::write(dir.join("gone"), "gone")?;
        let mut nameless = File::options().append(true).open(dir.join("gone"))?;
        fs::remove_file(dir.join("gone"))?;
        nameless.write_all(b"still open")?;
        fs::create_dir_all(dir.join("p/q"))?;
        fs::write(dir.join("p/q/r"), "r")?;
        fs::remove_dir_all(dir.join("p"))?;
        fs::create_dir(dir.join("empty"))?;
        fs::remove_dir(dir.join("empty"))?;
        fs::write(dir.join("some-shm"), "not recorded")?;
        // Very likely gets the inode of one that is gone.
        fs::write(dir.join("again"), "again")?;
        // Left over by whoever renamed nothing: `a` and `b` were the same file.
        file.write_all_at(b"both", 0)?;
        file.sync_data()
    }
}

impl Subject for OddCalls {
    fn work(&self, dir: &Path, acks: &Acks) -> Result<(), String> {
        Self::fill(dir).map_err(|e| e.to_string())?;
        acks.ack("done");
        Ok(())
    }

    fn verify(&self, _dir: &Path, _acked: &[String]) -> Result<(), String> {
        Ok(())
    }
}
