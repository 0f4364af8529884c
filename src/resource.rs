//! Names of what is locked, and the keys that stand for them.

use std::{fmt, sync::Arc};

use crate::options::OptionsError;

/// The longest legal name, in bytes.
pub(crate) const MAX_LEN: usize = 1024;

/// What is locked: a name that was checked (not empty, at most 1024 bytes), and its keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    /// The name is the end of it.
    lock_key: Key,
    name_at: usize,
}

impl Resource {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self, OptionsError> {
        if name.is_empty() {
            return Err(OptionsError::ResourceEmpty);
        }
        if name.len() > MAX_LEN {
            return Err(OptionsError::ResourceTooLong { len: name.len(), max: MAX_LEN });
        }
        let lock_key = Key(Arc::from(format!("{prefix}lock:{name}")));
        let name_at = lock_key.0.len().saturating_sub(name.len());
        Ok(Self { lock_key, name_at })
    }

    pub(crate) fn name(&self) -> &str {
        self.lock_key.0.get(self.name_at..).unwrap_or_default()
    }

    /// The key of the resource's counter on each node.
    pub(crate) fn fence_key(&self, prefix: &str) -> Key {
        Key(Arc::from(format!("{prefix}fence:{}", self.name())))
    }

    /// The key that is set on each node while the resource is locked.
    pub(crate) fn lock_key(&self) -> &Key {
        &self.lock_key
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.name(), f)
    }
}

/// A key on a node, prefix included. Cheap to clone: one goes to each node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// A key of that name, for driving a [`Node`](crate::node::Node) directly.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The key as the server sees it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_neither_empty_nor_endless() {
        assert!(matches!(Resource::new("q:", ""), Err(OptionsError::ResourceEmpty)));
        assert!(Resource::new("q:", &"x".repeat(MAX_LEN)).is_ok());
        assert!(matches!(
            Resource::new("q:", &"x".repeat(MAX_LEN + 1)),
            Err(OptionsError::ResourceTooLong { len: 1025, max: 1024 })
        ));
    }

    #[test]
    fn the_key_names_its_purpose() {
        let resource = Resource::new("shop:", "orders:42").unwrap();
        assert_eq!(resource.lock_key().as_str(), "shop:lock:orders:42");
        assert_eq!(resource.fence_key("shop:").as_str(), "shop:fence:orders:42");
        assert_eq!(resource.name(), "orders:42");
        assert_eq!(Resource::new("", "é").unwrap().name(), "é");
    }
}
