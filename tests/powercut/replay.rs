//! Reads the trace that `shim.c` wrote, and computes what a power cut may leave of a directory.
//!
//! The disk is pessimistic but legal. What a completed sync covers is there. Of everything later:
//!
//! * **Data.** Each 512-byte sector of each file is on its own: it holds what the last sync left,
//!   or what any later write made of it. So writes are lost, kept, torn, and reordered within a
//!   file and between files. A sync covers what was written before it *began*.
//! * **Length.** A file may have grown while its new sectors were lost (they then read as zeros)
//!   and the other way round. Growth can stop at any sector. Truncations happen in their order, and
//!   no later write shows where a lost truncation would have had to come first.
//! * **Names.** A created, linked, renamed or removed entry needs a sync of its directory; a sync
//!   of the file itself is not enough (see [`Disk::names_with_file`]). A rename into another
//!   directory needs both synced. Entries not synced may be there or not, each on its own, as long
//!   as changes of one name keep their order and a rename is never half done.
//!
//! All choices come from a seed, so a failure can be repeated from its trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// The number the shim gives to the recorded directory itself.
const ROOT: u64 = 2;

/// The number of a file or directory; never used twice in a trace, unlike an inode.
type Id = u64;

/// A name in a directory.
type Entry = (Id, Vec<u8>);

/// One thing the process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Create { id: Id, at: Entry },
    Mkdir { id: Id, at: Entry },
    Link { id: Id, at: Entry },
    Remove { at: Entry },
    Rename { id: Id, from: Entry, to: Entry },
    Write { id: Id, off: usize, data: Vec<u8> },
    Truncate { id: Id, len: usize },
    Allocate { id: Id, len: usize },
    SyncBegin { id: Id, number: u64 },
    SyncEnd { id: Id, number: u64 },
    AllDurable,
    Ack { data: Vec<u8> },
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(dir, name): &Entry| format!("{dir}/{}", String::from_utf8_lossy(name));
        match self {
            Self::Create { id, at } => write!(f, "create #{id} as {}", name(at)),
            Self::Mkdir { id, at } => write!(f, "mkdir #{id} as {}", name(at)),
            Self::Link { id, at } => write!(f, "link #{id} as {}", name(at)),
            Self::Remove { at } => write!(f, "remove {}", name(at)),
            Self::Rename { id, from, to } => {
                write!(f, "rename #{id} from {} to {}", name(from), name(to))
            }
            Self::Write { id, off, data } => write!(f, "write #{id} {off}+{}", data.len()),
            Self::Truncate { id, len } => write!(f, "truncate #{id} to {len}"),
            Self::Allocate { id, len } => write!(f, "allocate #{id} to {len}"),
            Self::SyncBegin { id, number } => write!(f, "sync {number} of #{id} begins"),
            Self::SyncEnd { id, number } => write!(f, "sync {number} of #{id} is complete"),
            Self::AllDurable => write!(f, "all durable"),
            Self::Ack { data } => write!(f, "ack {}", String::from_utf8_lossy(data).trim_end()),
        }
    }
}

/// Everything a process did, in order. A cut point `k` means: the first `k` records happened.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) records: Vec<Record>,
}

impl Trace {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut records = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            records.push(parse_record(&mut rest)?);
        }
        Ok(Self { records })
    }

    /// The lines acknowledged among the first `k` records; a line without its end does not count.
    pub(crate) fn acks_before(&self, k: usize) -> Vec<String> {
        let mut text = Vec::new();
        for record in self.records.iter().take(k) {
            if let Record::Ack { data } = record {
                text.extend_from_slice(data);
            }
        }
        let text = String::from_utf8_lossy(&text);
        let whole = text.rfind('\n').map_or("", |end| text.split_at(end).0);
        whole.lines().map(str::to_owned).collect()
    }

    /// The same process without the syncs of some files and directories, chosen by the last part of
    /// the name they were made with (the top directory has none): plants a missing sync without
    /// touching the program.
    pub(crate) fn without_syncs(&self, of: impl Fn(&str) -> bool) -> Self {
        let mut dropped: BTreeSet<Id> = BTreeSet::new();
        if of("") {
            dropped.insert(ROOT);
        }
        let mut records = Vec::new();
        for record in &self.records {
            if let Record::Create { id, at } | Record::Mkdir { id, at } = record
                && of(&String::from_utf8_lossy(&at.1))
            {
                dropped.insert(*id);
            }
            let mut synced = None;
            if let Record::SyncBegin { id, .. } | Record::SyncEnd { id, .. } = record {
                synced = Some(id);
            }
            if synced.is_none_or(|id| !dropped.contains(id)) {
                records.push(record.clone());
            }
        }
        Self { records }
    }

    /// The records just before a cut, to be read by a person.
    pub(crate) fn tail(&self, k: usize, count: usize) -> String {
        let skip = k.saturating_sub(count);
        let lines = self.records.iter().enumerate().take(k).skip(skip);
        lines
            .map(|(i, r)| format!("  {i}: {r}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest
        .split_first_chunk::<N>()
        .ok_or("the trace ends early")?;
    *rest = tail;
    Ok(*head)
}

fn parse_record(rest: &mut &[u8]) -> Result<Record, String> {
    let [kind] = take::<1>(rest)?;
    let id = u64::from_ne_bytes(take(rest)?);
    let dir = u64::from_ne_bytes(take(rest)?);
    let number = u64::from_ne_bytes(take(rest)?);
    let lens = [
        u32::from_ne_bytes(take(rest)?),
        u32::from_ne_bytes(take(rest)?),
    ];
    let [name, data] = lens.map(|len| {
        let (head, tail) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        *rest = tail;
        Some(head.to_vec())
    });
    let (name, data) = name.zip(data).ok_or("the trace ends early")?;
    let off = usize::try_from(number).map_err(|e| e.to_string())?;
    let at = (dir, name);
    Ok(match kind {
        b'C' => Record::Create { id, at },
        b'M' => Record::Mkdir { id, at },
        b'L' => Record::Link { id, at },
        b'U' => Record::Remove { at },
        b'R' => Record::Rename {
            id,
            from: at,
            to: (number, data),
        },
        b'W' => Record::Write { id, off, data },
        b'T' => Record::Truncate { id, len: off },
        b'F' => Record::Allocate { id, len: off },
        b's' => Record::SyncBegin { id, number },
        b'S' => Record::SyncEnd { id, number },
        b'A' => Record::AllDurable,
        b'K' => Record::Ack { data },
        b'X' => {
            let what = String::from_utf8_lossy(&data).into_owned();
            return Err(format!("the process did what cannot be followed: {what}"));
        }
        other => return Err(format!("a record of unknown kind {other}")),
    })
}

/// Small, seeded, and good enough to choose sectors (`SplitMix64`).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if there is none.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let n = u64::try_from(n).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % n).unwrap_or(0)
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// How the disk treats what was not synced. Pure chance would almost never produce the extremes,
/// so the character of each cut is drawn first.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// Nothing survives.
    Lost,
    /// Everything survives, as after SIGKILL.
    Kept,
    /// Everything before this record survives, that record itself is torn, later ones are lost.
    Until(usize),
    /// Each sector and entry on its own; this many percent have their newest state.
    Scattered(usize),
}

impl Mood {
    fn draw(rng: &mut Rng, first_pending: usize, k: usize) -> Self {
        match rng.below(8) {
            0 | 1 => Self::Lost,
            2 => Self::Kept,
            3 | 4 => Self::Until(first_pending + rng.below(k.saturating_sub(first_pending))),
            5 => Self::Scattered(90),
            6 => Self::Scattered(10),
            _ => Self::Scattered(50),
        }
    }

    /// How many of the changes made by these records (of one sector, of one file's length, of one
    /// entry) are on the disk.
    fn survivors(self, rng: &mut Rng, changes: &[usize]) -> usize {
        match self {
            Self::Lost => 0,
            Self::Kept => changes.len(),
            Self::Until(torn) => {
                let before = changes.iter().take_while(|at| **at < torn).count();
                let hit = changes.get(before) == Some(&torn);
                before + usize::from(hit && rng.percent(50))
            }
            Self::Scattered(newest) if rng.percent(newest) => changes.len(),
            Self::Scattered(_) => rng.below(changes.len()),
        }
    }
}

/// A change of a file's bytes or length.
#[derive(Debug, Clone, Copy)]
enum Change<'a> {
    Write { off: usize, data: &'a [u8] },
    Truncate(usize),
    Allocate(usize),
}

impl Change<'_> {
    fn apply(self, image: &mut Vec<u8>) {
        match self {
            Self::Write { off, data } => put(image, off, data),
            Self::Truncate(len) => image.resize(len, 0),
            Self::Allocate(len) => image.resize(image.len().max(len), 0),
        }
    }
}

fn put(image: &mut Vec<u8>, off: usize, data: &[u8]) {
    let end = off + data.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    if let Some(to) = image.get_mut(off..end) {
        to.copy_from_slice(data);
    }
}

/// The parts of a write that fall into one sector each: sector number, offset, bytes.
fn sectors(off: usize, data: &[u8]) -> impl Iterator<Item = (usize, usize, &[u8])> {
    let head = (SECTOR - off % SECTOR).min(data.len());
    let (first, rest) = data.split_at(head);
    let whole = (off + head..).step_by(SECTOR).zip(rest.chunks(SECTOR));
    std::iter::once((off, first))
        .filter(|(_, part)| !part.is_empty())
        .chain(whole)
        .map(|(at, part)| (at / SECTOR, at, part))
}

#[derive(Debug, Default)]
struct FileState<'a> {
    durable: Vec<u8>,
    /// With the index of the record, in order.
    pending: Vec<(usize, Change<'a>)>,
}

impl FileState<'_> {
    /// Everything recorded before `limit` is on the disk now.
    fn settle(&mut self, limit: usize) {
        let covered = self.pending.partition_point(|(at, _)| *at < limit);
        for (_, change) in self.pending.drain(..covered) {
            change.apply(&mut self.durable);
        }
    }

    fn crash(&self, mood: Mood, rng: &mut Rng) -> Vec<u8> {
        let cuts: Vec<usize> = self
            .pending
            .iter()
            .filter(|(_, change)| !matches!(change, Change::Write { .. }))
            .map(|(at, _)| *at)
            .collect();
        // Lengths set explicitly are journalled by the file system: they survive in order.
        let kept = mood.survivors(rng, &cuts);
        let cuts_end = cuts.get(kept).copied().unwrap_or(usize::MAX);

        // A write is shown only where no truncation that got lost came between: the sector it went
        // to would not have been a part of the file that the disk remembers.
        let mut limit = usize::MAX;
        let mut shown: Vec<(usize, Change<'_>)> = Vec::new();
        let mut versions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut writes = Vec::new();
        for (at, change) in &self.pending {
            match *change {
                Change::Truncate(len) if *at >= cuts_end => limit = limit.min(len),
                Change::Allocate(_) if *at >= cuts_end => {}
                Change::Truncate(_) | Change::Allocate(_) => shown.push((*at, *change)),
                Change::Write { off, data } => {
                    writes.push(*at);
                    shown.push((*at, *change));
                    for (sector, ..) in sectors(off, data) {
                        if (sector + 1) * SECTOR <= limit {
                            versions.entry(sector).or_default().push(*at);
                        }
                    }
                }
            }
        }

        // For each sector: the record from which on its changes are lost.
        let lost_from: HashMap<usize, usize> = versions
            .iter()
            .map(|(sector, changes)| {
                let kept = mood.survivors(rng, changes);
                (*sector, changes.get(kept).copied().unwrap_or(usize::MAX))
            })
            .collect();
        let grown = mood.survivors(rng, &writes);
        let growth_end = writes.get(grown).copied().unwrap_or(usize::MAX);
        let last_growth = grown.checked_sub(1).and_then(|i| writes.get(i)).copied();
        let torn = !matches!(mood, Mood::Kept | Mood::Lost) && rng.percent(50);

        let mut image = self.durable.clone();
        let mut len = image.len();
        for (at, change) in shown {
            let (off, data) = match change {
                Change::Truncate(to) => {
                    len = to;
                    image.resize(to, 0);
                    continue;
                }
                Change::Allocate(to) => {
                    len = len.max(to);
                    continue;
                }
                Change::Write { off, data } => (off, data),
            };
            if at < growth_end {
                let mut end = (off + data.len()).min(limit.max(len));
                if torn && Some(at) == last_growth && end > len {
                    let steps = (end - len) / SECTOR + 1;
                    end = (end / SECTOR * SECTOR).saturating_sub(rng.below(steps) * SECTOR);
                }
                len = len.max(end);
            }
            for (sector, off, part) in sectors(off, data) {
                if lost_from.get(&sector).is_some_and(|lost| at < *lost) {
                    put(&mut image, off, part);
                }
            }
        }
        image.resize(len, 0);
        image
    }
}

/// A change of names. What it puts where, what it takes away, and which directories must still be
/// synced for it to be durable.
#[derive(Debug, Clone)]
struct NameChange {
    at: usize,
    put: Option<(Entry, Node)>,
    remove: Option<Entry>,
    unsynced: BTreeSet<Id>,
}

impl NameChange {
    fn new(at: usize, put: Option<(Entry, Node)>, remove: Option<Entry>) -> Self {
        let touched = put.iter().map(|(entry, _)| entry).chain(&remove);
        let unsynced = touched.map(|entry| entry.0).collect();
        Self {
            at,
            put,
            remove,
            unsynced,
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.put.iter().map(|(entry, _)| entry).chain(&self.remove)
    }

    fn apply(&self, names: &mut BTreeMap<Entry, Node>) {
        if let Some(entry) = &self.remove {
            names.remove(entry);
        }
        if let Some((entry, node)) = &self.put {
            names.insert(entry.clone(), *node);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(Id),
    Dir(Id),
}

/// The disk as a trace goes by: what is certain to be on it, and what waits in the cache.
#[derive(Debug, Default)]
pub(crate) struct Disk<'a> {
    /// Whether a sync of a file also makes its name durable. ext4, XFS and btrfs do so for a new
    /// file, POSIX does not promise it; without it, only a sync of the directory counts.
    pub(crate) names_with_file: bool,
    now: usize,
    files: HashMap<Id, FileState<'a>>,
    dirs: BTreeSet<Id>,
    names: BTreeMap<Entry, Node>,
    pending_names: Vec<NameChange>,
    sync_begun: HashMap<u64, usize>,
}

impl<'a> Disk<'a> {
    /// The disk after the first `k` records.
    pub(crate) fn after(trace: &'a Trace, k: usize) -> Self {
        let mut disk = Self::default();
        disk.play(trace.records.iter().take(k));
        disk
    }

    /// Carries on with later records.
    pub(crate) fn play(&mut self, records: impl IntoIterator<Item = &'a Record>) {
        for record in records {
            self.step(record);
            self.now += 1;
        }
    }

    fn step(&mut self, record: &'a Record) {
        let at = self.now;
        match record {
            Record::Create { id, at: entry } => {
                self.files.entry(*id).or_default();
                self.rename(NameChange::new(
                    at,
                    Some((entry.clone(), Node::File(*id))),
                    None,
                ));
            }
            Record::Mkdir { id, at: entry } => {
                self.dirs.insert(*id);
                self.rename(NameChange::new(
                    at,
                    Some((entry.clone(), Node::Dir(*id))),
                    None,
                ));
            }
            Record::Link { id, at: entry } => {
                self.rename(NameChange::new(
                    at,
                    Some((entry.clone(), self.node(*id))),
                    None,
                ));
            }
            Record::Remove { at: entry } => {
                self.rename(NameChange::new(at, None, Some(entry.clone())));
            }
            Record::Rename { id, from, to } => {
                let put = Some((to.clone(), self.node(*id)));
                self.rename(NameChange::new(at, put, Some(from.clone())));
            }
            Record::Write { id, off, data } => self.change(*id, Change::Write { off: *off, data }),
            Record::Truncate { id, len } => self.change(*id, Change::Truncate(*len)),
            Record::Allocate { id, len } => self.change(*id, Change::Allocate(*len)),
            Record::SyncBegin { number, .. } => {
                self.sync_begun.insert(*number, at);
            }
            Record::SyncEnd { id, number } => {
                if let Some(begun) = self.sync_begun.remove(number) {
                    self.sync(*id, begun);
                }
            }
            Record::AllDurable => {
                for file in self.files.values_mut() {
                    file.settle(at);
                }
                for change in self.pending_names.drain(..) {
                    change.apply(&mut self.names);
                }
            }
            Record::Ack { .. } => {}
        }
    }

    fn node(&self, id: Id) -> Node {
        if self.dirs.contains(&id) {
            Node::Dir(id)
        } else {
            Node::File(id)
        }
    }

    fn rename(&mut self, change: NameChange) {
        self.pending_names.push(change);
    }

    fn change(&mut self, id: Id, change: Change<'a>) {
        self.files
            .entry(id)
            .or_default()
            .pending
            .push((self.now, change));
    }

    fn sync(&mut self, id: Id, begun: usize) {
        if let Some(file) = self.files.get_mut(&id) {
            file.settle(begun);
        }
        for change in self
            .pending_names
            .iter_mut()
            .filter(|change| change.at < begun)
        {
            change.unsynced.remove(&id);
            let of_file = change
                .put
                .as_ref()
                .is_some_and(|(_, node)| *node == Node::File(id));
            if self.names_with_file && of_file {
                change.unsynced.clear();
            }
        }
        // Backwards: a durable change takes along the earlier ones of the same names.
        let mut durable: BTreeSet<Entry> = BTreeSet::new();
        for change in self.pending_names.iter_mut().rev() {
            if change.entries().any(|entry| durable.contains(entry)) {
                change.unsynced.clear();
            }
            if change.unsynced.is_empty() {
                durable.extend(change.entries().cloned());
            }
        }
        let names = &mut self.names;
        self.pending_names.retain(|change| {
            let keep = !change.unsynced.is_empty();
            if !keep {
                change.apply(names);
            }
            keep
        });
    }

    /// What the disk may hold if the power fails now.
    pub(crate) fn crash(&self, seed: u64) -> Image {
        let mut rng = Rng::new(seed);
        let data = self
            .files
            .values()
            .filter_map(|file| file.pending.first())
            .map(|(at, _)| *at);
        let names = self.pending_names.iter().map(|change| change.at);
        let first = data.chain(names).min().unwrap_or(self.now);
        let mood = Mood::draw(&mut rng, first, self.now);
        self.image(mood, &mut rng)
    }

    /// What the process itself saw last: the disk if nothing gets lost.
    pub(crate) fn everything(&self) -> Image {
        self.image(Mood::Kept, &mut Rng::new(0))
    }

    fn image(&self, mood: Mood, rng: &mut Rng) -> Image {
        let mut names = self.names.clone();
        let mut stale: BTreeSet<&Entry> = BTreeSet::new();
        for change in &self.pending_names {
            let follows_lost = change.entries().any(|entry| stale.contains(entry));
            if !follows_lost && mood.survivors(rng, &[change.at]) == 1 {
                change.apply(&mut names);
            } else {
                stale.extend(change.entries());
            }
        }
        // A file with two names has one content, so contents are drawn first; and in a fixed order,
        // so that the seed decides.
        let mut ids: Vec<_> = self.files.keys().copied().collect();
        ids.sort_unstable();
        let contents: HashMap<Id, Vec<u8>> = ids
            .into_iter()
            .filter_map(|id| Some((id, self.files.get(&id)?.crash(mood, rng))))
            .collect();
        let mut image = Image::default();
        let mut open = vec![(ROOT, PathBuf::new())];
        while let Some((dir, path)) = open.pop() {
            let inside = names
                .range((dir, Vec::new())..)
                .take_while(|((d, _), _)| *d == dir);
            for ((_, name), node) in inside {
                let path = path.join(OsStr::from_bytes(name));
                match node {
                    Node::Dir(id) => {
                        image.dirs.insert(path.clone());
                        open.push((*id, path));
                    }
                    Node::File(id) => {
                        let bytes = contents.get(id).cloned().unwrap_or_default();
                        image.files.insert(path, bytes);
                    }
                }
            }
        }
        image
    }
}

/// A directory tree: paths below its top, and what they hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) dirs: BTreeSet<PathBuf>,
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// Builds the tree in an empty directory.
    pub(crate) fn write_to(&self, dir: &Path) -> io::Result<()> {
        for path in &self.dirs {
            fs::create_dir(dir.join(path))?;
        }
        for (path, bytes) in &self.files {
            fs::write(dir.join(path), bytes)?;
        }
        Ok(())
    }

    /// Reads a tree, without what the shim leaves out.
    pub(crate) fn read_from(dir: &Path) -> io::Result<Self> {
        let mut image = Self::default();
        let mut open = vec![PathBuf::new()];
        while let Some(at) = open.pop() {
            for entry in fs::read_dir(dir.join(&at))? {
                let entry = entry?;
                let path = at.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    image.dirs.insert(path.clone());
                    open.push(path);
                } else if path != Path::new("acks")
                    && !path.as_os_str().as_bytes().ends_with(b"-shm")
                {
                    image.files.insert(path, fs::read(entry.path())?);
                }
            }
        }
        Ok(image)
    }

    /// The first difference, for people.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.dirs != other.dirs {
            return Some(format!("directories {:?} and {:?}", self.dirs, other.dirs));
        }
        let paths: BTreeSet<_> = self.files.keys().chain(other.files.keys()).collect();
        paths
            .into_iter()
            .find_map(|path| match (self.files.get(path), other.files.get(path)) {
                (Some(a), Some(b)) if a == b => None,
                (Some(a), Some(b)) => {
                    let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                    let lens = (a.len(), b.len());
                    Some(format!(
                        "{}: lengths {lens:?}, differs at {at}",
                        path.display()
                    ))
                }
                (a, _) => {
                    let side = if a.is_some() { "first" } else { "second" };
                    Some(format!("{} is only in the {side}", path.display()))
                }
            })
    }
}

mod tests {
    use super::*;

    fn at(name: &str) -> Entry {
        (ROOT, name.as_bytes().to_vec())
    }

    fn create(id: Id, name: &str) -> Record {
        Record::Create { id, at: at(name) }
    }

    fn write(id: Id, off: usize, byte: u8, len: usize) -> Record {
        Record::Write {
            id,
            off,
            data: vec![byte; len],
        }
    }

    fn synced(id: Id, number: u64) -> [Record; 2] {
        [
            Record::SyncBegin { id, number },
            Record::SyncEnd { id, number },
        ]
    }

    fn images(records: Vec<Record>) -> Vec<Image> {
        images_with(records, false)
    }

    fn images_with(records: Vec<Record>, names_with_file: bool) -> Vec<Image> {
        let trace = Trace { records };
        let mut disk = Disk {
            names_with_file,
            ..Disk::default()
        };
        disk.play(&trace.records);
        (0..500).map(|seed| disk.crash(seed)).collect()
    }

    fn file<'a>(image: &'a Image, name: &str) -> Option<&'a Vec<u8>> {
        image.files.get(Path::new(name))
    }

    #[test]
    fn what_was_synced_is_always_there() {
        let mut records = vec![create(3, "a"), write(3, 0, 1, 1000)];
        records.extend(synced(3, 1));
        records.extend(synced(ROOT, 2));
        records.push(create(4, "b"));
        assert!(
            images(records)
                .iter()
                .all(|i| file(i, "a") == Some(&vec![1; 1000]))
        );
    }

    #[test]
    fn a_name_needs_its_directory_synced() {
        let mut records = vec![create(3, "a"), write(3, 0, 1, 1000)];
        records.extend(synced(3, 1));
        let seen = images(records.clone());
        assert!(seen.iter().any(|i| file(i, "a").is_none()));
        assert!(seen.iter().any(|i| file(i, "a") == Some(&vec![1; 1000])));
        let lenient = images_with(records, true);
        assert!(lenient.iter().all(|i| file(i, "a").is_some()));
    }

    #[test]
    fn a_sync_covers_only_what_came_before_it_began() {
        let mut records = vec![create(3, "a"), write(3, 0, 1, 512), Record::AllDurable];
        records.push(Record::SyncBegin { id: 3, number: 1 });
        records.push(write(3, 0, 2, 512));
        records.push(Record::SyncEnd { id: 3, number: 1 });
        let seen = images(records);
        assert!(seen.iter().any(|i| file(i, "a") == Some(&vec![1; 512])));
        assert!(seen.iter().any(|i| file(i, "a") == Some(&vec![2; 512])));
    }

    #[test]
    fn sectors_survive_each_on_its_own_and_never_in_part() {
        let records = vec![
            create(3, "a"),
            write(3, 0, 1, 2048),
            Record::AllDurable,
            write(3, 0, 2, 2048),
        ];
        let mut shapes = BTreeSet::new();
        for image in images(records) {
            let bytes = file(&image, "a").unwrap();
            assert_eq!(bytes.len(), 2048);
            let shape: Vec<u8> = bytes
                .chunks(SECTOR)
                .map(|sector| {
                    assert!(sector.iter().all(|b| *b == sector[0]));
                    sector[0]
                })
                .collect();
            shapes.insert(shape);
        }
        assert_eq!(shapes.len(), 16, "{shapes:?}");
    }

    #[test]
    fn growth_can_lose_its_data_or_stop_at_a_sector() {
        let records = vec![create(3, "a"), Record::AllDurable, write(3, 0, 1, 2000)];
        let seen = images(records);
        let any = |want: &[u8]| seen.iter().any(|i| file(i, "a").is_some_and(|b| b == want));
        assert!(any(&[]));
        assert!(any(&[1; 2000]));
        assert!(any(&[1; 512]));
        assert!(any(&[1; 1024]));
        let holes = |b: &Vec<u8>| b.len() == 2000 && b[0] == 0 && b[600] == 1;
        assert!(seen.iter().any(|i| file(i, "a").is_some_and(holes)));
    }

    #[test]
    fn nothing_is_seen_of_writes_after_a_lost_truncation() {
        let mut records = vec![create(3, "a"), write(3, 0, 1, 1024), Record::AllDurable];
        records.push(Record::Truncate { id: 3, len: 0 });
        records.push(write(3, 0, 2, 1024));
        for image in images(records) {
            let bytes = file(&image, "a").unwrap();
            let old = bytes.contains(&1);
            assert!(!old || *bytes == vec![1; 1024], "{:?}", &bytes[..]);
        }
    }

    #[test]
    fn a_rename_is_never_half_done() {
        let mut records = vec![create(3, "a"), write(3, 0, 1, 10), create(4, "new")];
        records.extend([write(4, 0, 2, 10), Record::AllDurable]);
        records.push(Record::Rename {
            id: 4,
            from: at("new"),
            to: at("a"),
        });
        records.push(create(5, "new"));
        let mut seen = BTreeSet::new();
        for image in images(records.clone()) {
            let of = |name| file(&image, name).and_then(|b| b.first().copied().or(Some(0)));
            seen.insert((of("a"), of("new")));
        }
        let legal = [(Some(1), Some(2)), (Some(2), None), (Some(2), Some(0))];
        assert_eq!(seen, BTreeSet::from(legal));
        // Once the second file of that name is durable, so is the rename before it.
        records.extend(synced(ROOT, 1));
        assert!(
            images(records)
                .iter()
                .all(|i| file(i, "a") == Some(&vec![2; 10]))
        );
    }

    #[test]
    fn a_move_needs_both_directories_synced() {
        let inside = |name: &str| (3, name.as_bytes().to_vec());
        let mut records = vec![Record::Mkdir { id: 3, at: at("d") }, create(4, "a")];
        records.push(Record::AllDurable);
        records.push(Record::Rename {
            id: 4,
            from: at("a"),
            to: inside("a"),
        });
        records.extend(synced(3, 1));
        assert!(
            images(records.clone())
                .iter()
                .any(|i| file(i, "a").is_some())
        );
        records.extend(synced(ROOT, 2));
        assert!(
            images(records)
                .iter()
                .all(|i| file(i, "d/a").is_some() && file(i, "a").is_none())
        );
    }

    #[test]
    fn acknowledgements_count_by_whole_lines() {
        let ack = |text: &str| Record::Ack {
            data: text.as_bytes().to_vec(),
        };
        let trace = Trace {
            records: vec![ack("one\ntw"), write(3, 0, 1, 1), ack("o\nthree\n")],
        };
        assert_eq!(trace.acks_before(0), Vec::<String>::new());
        assert_eq!(trace.acks_before(2), ["one"]);
        assert_eq!(trace.acks_before(3), ["one", "two", "three"]);
    }

    #[test]
    fn a_trace_that_ends_early_is_refused() {
        assert!(Trace::parse(b"W123").is_err());
        assert!(Trace::parse(&[b'?'; 33]).is_err());
    }
}
