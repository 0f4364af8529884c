//! Replies and errors of fred as what they say about an operation.

use std::time::Duration;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

use super::listener::whole_ring;
use crate::node::{
    Answer, NodeFailure, Operation, Outcome,
    script::{self, Said},
};

/// Reads a reply, and makes sure that it is the one to this operation.
///
/// RESP has no request ids: replies are matched by their order alone. One that is out of step would be
/// taken for another's vote, so the connection is given up at the first sign of it.
pub(super) fn decode(value: &Value, asked: &Operation) -> Outcome {
    let answer = match (value, asked) {
        (Value::Array(items), Operation::Waiters { key, besides }) => match items.as_slice() {
            [channel, Value::Integer(count)]
                if channel.as_str().is_some_and(|name| *name == *whole_ring(key)) =>
            {
                let others = *count > i64::from(*besides);
                let (taken, missing) = (Answer::Taken { remaining: None }, Answer::Missing);
                Some(if others { taken } else { missing })
            }
            _ => None,
        },
        (pong, Operation::Ping { nonce }) => {
            (pong.as_str().as_deref() == Some(&*nonce.to_string())).then_some(Answer::Done)
        }
        (reply, asked) => {
            let is_ours = |to: &str| asked.owner().is_some_and(|owner| owner.text().as_str() == to);
            return decode_said(reply.as_str().as_deref(), asked, is_ours);
        }
    };
    answer.ok_or_else(out_of_step)
}

/// Reads what a script said, if it was said to whoever asked.
fn decode_said(reply: Option<&str>, asked: &Operation, is_ours: impl Fn(&str) -> bool) -> Outcome {
    let said = reply.and_then(Said::read).filter(|said| is_ours(said.to));
    let said = said.ok_or_else(out_of_step)?;
    match said.code {
        script::FAILED => Err(NodeFailure::Rejected { message: said.more.to_owned() }),
        script::NOT_ADMITTED => Err(not_admitted()),
        _ => said.answer(asked).filter(|_| said.more.is_empty()).ok_or_else(out_of_step),
    }
}

/// Reads the lines of a reply to the command of that number. One that is out of step makes all of them
/// doubtful.
pub(super) fn decode_together(
    reply: Option<&str>,
    number: u64,
    asked: &[Operation],
) -> Result<Vec<Outcome>, NodeFailure> {
    let mut lines = reply.ok_or_else(out_of_step)?.split('\n');
    if lines.next() != Some(&*number.to_string()) {
        return Err(out_of_step());
    }
    let outcomes: Vec<Outcome> =
        asked.iter().map(|asked| decode_said(lines.next(), asked, str::is_empty)).collect();
    let is_complete = lines.next().is_none() && !outcomes.contains(&Err(out_of_step()));
    if is_complete { Ok(outcomes) } else { Err(out_of_step()) }
}

/// What a failed call says about the operation. In doubt, that it may have run.
pub(super) fn failed_call(error: &Error, timeout: Duration) -> NodeFailure {
    let details = error.details();
    if details.starts_with("NOSCRIPT") {
        return NodeFailure::NoScript;
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "fred has more kinds with more features")]
    match error.kind() {
        ErrorKind::Timeout => NodeFailure::Timeout { after: timeout },
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Protocol | ErrorKind::Parse => {
            NodeFailure::Disconnected { cause: details.to_owned() }
        }
        // Mostly an error that the server sent. The rest is fred's own, and no more certain.
        _ => NodeFailure::Rejected { message: details.to_owned() },
    }
}

/// What a failed connection attempt says about the server.
pub(super) fn not_connected(error: &Error) -> NodeFailure {
    let details = error.details();
    let unfit = |reason: String| NodeFailure::Unfit { reason };
    #[expect(clippy::wildcard_enum_match_arm, reason = "fred has more kinds with more features")]
    match error.kind() {
        ErrorKind::Auth | ErrorKind::Config | ErrorKind::Url => unfit(details.to_owned()),
        // That is how fred reads the end of a connection in the middle of AUTH.
        ErrorKind::Protocol if details == "Expected string." => {
            unreachable("the connection was closed")
        }
        ErrorKind::Protocol | ErrorKind::Parse => {
            unfit(format!("not a Redis or Valkey server: {details}"))
        }
        _ if details.starts_with("ERR AUTH")
            || details.starts_with("NOPERM")
            || details.contains("DB index") =>
        {
            unfit(details.to_owned())
        }
        _ => unreachable(details),
    }
}

pub(super) fn out_of_step() -> NodeFailure {
    NodeFailure::Disconnected { cause: "a reply out of step".to_owned() }
}

fn not_admitted() -> NodeFailure {
    NodeFailure::NotAdmitted { why: "it does not know of its admission any more".to_owned() }
}

pub(super) fn unreachable(cause: &str) -> NodeFailure {
    NodeFailure::Unreachable { cause: cause.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{owner_id::OwnerId, resource::Key};

    #[test]
    fn one_line_that_is_out_of_step_makes_all_doubtful() {
        let extend = |owner| Operation::Extend { key: Key::new("k"), owner, ttl_ms: 1 };
        let asked = [OwnerId::random(), OwnerId::random()].map(extend);
        let decode = |reply: &str| decode_together(Some(reply), 7, &asked);
        let said = decode("7\n1 0 \n5 0  ERR not now: 1 2");
        let failed = NodeFailure::Rejected { message: "ERR not now: 1 2".to_owned() };
        assert_eq!(said, Ok(vec![Ok(Answer::Done), Err(failed)]));
        let out_of_step = Err(out_of_step());
        let to_owner = format!("7\n1 0 \n1 0 {}", OwnerId::random());
        for reply in [
            "8\n1 0 \n1 0 ",
            "1 0 \n1 0 ",
            "7\n1 0 ",
            "7\n1 0 \n1 0 \n1 0 ",
            "7\n1 0  more\n1 0 ",
            "7\n1 0 \nx",
            "7\n\n1 0 ",
            "07\n1 0 \n1 0 ",
            &*to_owner,
            "7",
            "",
        ] {
            assert_eq!(decode(reply), out_of_step, "{reply}");
        }
        assert_eq!(decode_together(None, 7, &asked), out_of_step);
    }
}
