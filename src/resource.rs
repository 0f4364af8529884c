//! Names of what is locked, and the keys that stand for them.

use std::{fmt, sync::Arc};

use crate::options::OptionsError;

/// The longest legal name, in bytes.
pub(crate) const MAX_LEN: usize = 1024;

/// The name of what is locked, checked: not empty, at most 1024 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Resource(Arc<str>);

impl Resource {
    pub(crate) fn new(name: &str) -> Result<Self, OptionsError> {
        if name.is_empty() {
            return Err(OptionsError::ResourceEmpty);
        }
        if name.len() > MAX_LEN {
            return Err(OptionsError::ResourceTooLong { len: name.len(), max: MAX_LEN });
        }
        Ok(Self(Arc::from(name)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the resource's counter on each node.
    pub(crate) fn fence_key(&self, prefix: &str) -> Key {
        Key(Arc::from(format!("{prefix}fence:{}", self.0)))
    }

    /// The key that is set on each node while the resource is locked.
    pub(crate) fn lock_key(&self, prefix: &str) -> Key {
        Key(Arc::from(format!("{prefix}lock:{}", self.0)))
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
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
        assert!(matches!(Resource::new(""), Err(OptionsError::ResourceEmpty)));
        assert!(Resource::new(&"x".repeat(MAX_LEN)).is_ok());
        assert!(matches!(
            Resource::new(&"x".repeat(MAX_LEN + 1)),
            Err(OptionsError::ResourceTooLong { len: 1025, max: 1024 })
        ));
    }

    #[test]
    fn the_key_names_its_purpose() {
        let key = Resource::new("orders:42").unwrap().lock_key("shop:");
        assert_eq!(key.as_str(), "shop:lock:orders:42");
    }
}
