//! What is asked of a server and written to it so that it may vote.

use std::time::Duration;

use fred::{clients::Client, types::Value};

use super::{failed_call, send};
use crate::{
    node::{
        Facts, MarkState, Marker, NodeFailure,
        script::{Script, acquire_with},
    },
    resource::Key,
};

/// The commands of a look or a mark, on one connection.
pub(super) struct Commands {
    pub(super) client: Client,
    pub(super) timeout: Duration,
}

impl Commands {
    async fn ask(&self, command: &'static str, args: &[&str]) -> Result<Value, NodeFailure> {
        let args = args.iter().map(|arg| Value::from(*arg)).collect();
        let reply = send(&self.client, command, args, self.timeout).await;
        reply.map_err(|error| failed_call(&error, self.timeout))
    }

    pub(super) async fn look(self, marker: Key, durability: bool) -> Result<Facts, NodeFailure> {
        let info = self.ask("INFO", &[]).await?;
        let facts = info.as_str().and_then(|info| Facts::of_info(&info));
        let mut facts = facts.ok_or_else(|| NodeFailure::Rejected {
            message: "INFO says neither run_id nor role: not a Redis or Valkey server".to_owned(),
        })?;
        if facts.is_loading {
            return Ok(facts);
        }
        facts.marker = match self.ask("GET", &[marker.as_str()]).await? {
            Value::Null => None,
            value => Some(value.into_string().unwrap_or_default()),
        };
        if durability {
            // Where that is forbidden, it is not relied on.
            let policy = self.ask("CONFIG", &["GET", "appendonly", "appendfsync"]).await;
            facts.is_durable = policy.is_ok_and(|policy| is_durable(&policy));
        }
        Ok(facts)
    }

    pub(super) async fn mark(
        self,
        at: Key,
        seen: Option<String>,
        mut marker: Marker,
    ) -> Result<bool, NodeFailure> {
        if let MarkState::Admitted { acquire } = &mut marker.state {
            let digest = self.ask("SCRIPT", &["LOAD", &acquire_with(&marker.id)]).await?;
            *acquire = digest.into_string().ok_or_else(out_of_step)?;
        }
        let (text, seen) = (marker.to_string(), seen.unwrap_or_default());
        let args = [Script::Mark.text(), "1", at.as_str(), &marker.run_id, &seen, &text];
        match self.ask("EVAL", &args).await? {
            Value::Array(reply) => match reply.as_slice() {
                [Value::Integer(written), Value::Integer(_), run_id]
                    if run_id.as_str().as_deref() == Some(marker.run_id.as_str()) =>
                {
                    Ok(*written == 1)
                }
                _ => Err(out_of_step()),
            },
            _ => Err(out_of_step()),
        }
    }
}

fn out_of_step() -> NodeFailure {
    NodeFailure::Disconnected { cause: "a reply out of step".to_owned() }
}

/// Reads the reply to `CONFIG GET`: a list of names and values, or a map.
fn is_durable(policy: &Value) -> bool {
    let flat: Vec<String> = match policy {
        Value::Array(items) => items.iter().filter_map(Value::as_string).collect(),
        Value::Map(map) => map
            .clone()
            .inner()
            .iter()
            .flat_map(|(name, value)| [name.as_str().map(str::to_owned), value.as_string()])
            .flatten()
            .collect(),
        _ => return false,
    };
    let is = |name: &str, wanted: &str| {
        flat.chunks(2).any(|pair| matches!(pair, [n, value] if n == name && value == wanted))
    };
    is("appendonly", "yes") && is("appendfsync", "always")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_append_only_file_that_is_always_synced_is_durable() {
        let reply = |only: &str, sync: &str| {
            let words = ["appendonly", only, "appendfsync", sync];
            Value::Array(words.iter().map(|word| Value::from(*word)).collect())
        };
        assert!(is_durable(&reply("yes", "always")));
        assert!(!is_durable(&reply("no", "always")));
        assert!(!is_durable(&reply("yes", "everysec")));
        assert!(!is_durable(&Value::Null));
    }
}
