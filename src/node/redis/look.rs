//! What is asked of a server and written to it so that it may vote.

use std::time::Duration;

use fred::{clients::Client, types::Value};

use super::{
    reply::{failed_call, out_of_step},
    send,
};
use crate::{
    fencing_token,
    node::{
        Facts, FleetKeys, MarkState, Marker, NodeFailure,
        script::{self, Said, Script},
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

    async fn get(&self, key: &Key) -> Result<Option<String>, NodeFailure> {
        let value = self.ask("GET", &[key.as_str()]).await?;
        Ok((!value.is_null()).then(|| value.into_string().unwrap_or_default()))
    }

    pub(super) async fn look(
        self,
        keys: FleetKeys,
        durability: bool,
    ) -> Result<Facts, NodeFailure> {
        let info = self.ask("INFO", &[]).await?;
        let facts = info.as_str().and_then(|info| Facts::of_info(&info));
        let mut facts = facts.ok_or_else(|| NodeFailure::Rejected {
            message: "INFO says neither run_id nor role: not a Redis or Valkey server".to_owned(),
        })?;
        if facts.is_loading || facts.is_cluster {
            // Nothing else is known, and nothing else decides.
            return Ok(facts);
        }
        facts.forbidden = self.forbidden(&keys, &facts.run_id).await?;
        if !facts.may_read() {
            return Ok(facts);
        }
        // In this order: a marker that is there then shows that what was read before was not forgotten, or
        // else it has the floor of an admission since.
        let max = self.get(&keys.max).await?;
        facts.max = max.map_or(Some(0), |max| fencing_token::number(&max));
        facts.marker = self.get(&keys.marker).await?;
        if durability {
            // Where that is forbidden, it is not relied on.
            let policy = self.ask("CONFIG", &["GET", "appendonly", "appendfsync"]).await;
            facts.is_durable = policy.is_ok_and(|policy| is_durable(&policy));
        }
        Ok(facts)
    }

    async fn forbidden(&self, keys: &FleetKeys, run_id: &str) -> Result<Vec<String>, NodeFailure> {
        let text = Script::Rights.text();
        let digest = sha1_smol::Sha1::from(text).digest().to_string();
        let args = [digest.as_str(), "0", run_id, keys.marker.as_str()];
        let mut reply = self.ask("EVALSHA", &args).await;
        if reply == Err(NodeFailure::NoScript) {
            self.ask("SCRIPT", &["LOAD", text]).await?;
            reply = self.ask("EVALSHA", &args).await;
        }
        let reply = reply?.into_string().ok_or_else(out_of_step)?;
        let said =
            Said::read(&reply).filter(|said| said.to == run_id && said.code == script::RIGHTS);
        let forbidden = said.ok_or_else(out_of_step)?.more;
        Ok(forbidden.split_whitespace().map(str::to_owned).collect())
    }

    pub(super) async fn mark(
        self,
        keys: FleetKeys,
        seen: Option<String>,
        marker: Marker,
    ) -> Result<bool, NodeFailure> {
        if marker.state == MarkState::Admitted {
            for script in Script::VOTES {
                let text = script.text_for(&marker.id, &marker.members, marker.floor);
                self.ask("SCRIPT", &["LOAD", &text]).await?;
            }
        }
        let (text, seen) = (marker.to_string(), seen.unwrap_or_default());
        let floor = marker.floor.to_string();
        let FleetKeys { marker: at, max } = &keys;
        let args = [
            Script::Mark.text(),
            "2",
            at.as_str(),
            max.as_str(),
            &marker.run_id,
            &seen,
            &text,
            &floor,
        ];
        let reply = self.ask("EVAL", &args).await?;
        let reply = reply.into_string().ok_or_else(out_of_step)?;
        let said = Said::read(&reply).filter(|said| said.to == marker.run_id);
        match said.map(|said| said.code) {
            Some(1) => Ok(true),
            Some(0) => Ok(false),
            _ => Err(out_of_step()),
        }
    }
}

/// Reads the reply to `CONFIG GET`: a list of names and values, or a map.
fn is_durable(policy: &Value) -> bool {
    let flat: Vec<String> = if let Value::Array(items) = policy {
        items.iter().filter_map(Value::as_string).collect()
    } else if let Value::Map(map) = policy {
        let pairs = map.clone().inner();
        let words = pairs
            .iter()
            .flat_map(|(name, value)| [name.as_str().map(str::to_owned), value.as_string()]);
        words.flatten().collect()
    } else {
        return false;
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
