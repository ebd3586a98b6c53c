//! Who calls, and what they may do.

use std::fmt;

use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, PrincipalName, Tenant, UserId};

/// What a key or certificate entitles to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Writes the data of agents; creates and consumes interrupts, never decides.
    Agent,
    /// Sees and decides interrupts, and sees their sessions.
    Reviewer,
    /// Reads.
    Viewer,
    /// Rules, deletion, pruning, repair, keys.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Reviewer, Self::Viewer, Self::Admin];

    /// The role's name in configuration and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Reviewer => "reviewer",
            Self::Viewer => "viewer",
            Self::Admin => "admin",
        }
    }

    /// The role called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A caller, as the server verified them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose data they see. Never from a request.
    pub tenant: Tenant,
    /// Who they are, for decisions and timelines.
    pub principal: PrincipalName,
    /// What they may do.
    pub roles: Vec<Role>,
    /// The only agent whose data they may touch, if the key names one.
    pub agent: Option<AgentId>,
    /// The only user whose data they may touch, if the key names one.
    pub user: Option<UserId>,
    /// Whether they may repair guards of their own writers.
    pub host: bool,
    /// How the server verified them, such as `api_key` or `loopback`.
    pub auth_method: &'static str,
}

impl Caller {
    /// The server itself, at work for a tenant that nobody called for.
    #[must_use]
    pub fn server(tenant: Tenant) -> Self {
        Self {
            tenant,
            principal: PrincipalName::server(),
            roles: Vec::new(),
            agent: None,
            user: None,
            host: false,
            auth_method: "",
        }
    }

    /// Whether the caller has one of `roles`.
    #[must_use]
    pub fn has_any(&self, roles: &[Role]) -> bool {
        self.roles.iter().any(|role| roles.contains(role))
    }

    /// Refuses a caller who has none of `roles`.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`], naming the roles that would do.
    pub fn require(&self, roles: &[Role]) -> Result<()> {
        if self.has_any(roles) {
            return Ok(());
        }
        let names: Vec<_> = roles.iter().map(|role| role.name()).collect();
        Err(Error::new(
            Reason::PermissionDenied,
            format!(
                "this needs the role {}; use a key that has it",
                names.join(" or ")
            ),
        )
        .with("roles", names.join(",")))
    }

    /// Refuses an agent that the caller's key does not name.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`].
    pub fn check_agent(&self, agent: &AgentId) -> Result<()> {
        match &self.agent {
            Some(own) if own != agent => Err(Error::new(
                Reason::PermissionDenied,
                "this key is for one agent, and the request names another",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a user that the caller's key does not name.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`].
    pub fn check_user(&self, user: Option<&UserId>) -> Result<()> {
        match &self.user {
            Some(own) if user != Some(own) => Err(Error::new(
                Reason::PermissionDenied,
                "this key is for one user, and the request names another or none",
            )),
            _ => Ok(()),
        }
    }
}
