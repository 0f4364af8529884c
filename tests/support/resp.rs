//! A RESP2 client of a page, so that what the tests see of a server does not pass through the code
//! under test or its driver.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A null bulk string or a null array.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or a bulk string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An array.
    Array(Vec<Reply>),
    /// An error, its code first: `"NOAUTH Authentication required."`.
    Error(String),
}

impl Reply {
    /// The string, or `None` for nil; panics on anything else.
    #[track_caller]
    pub fn into_text(self) -> Option<String> {
        match self {
            Self::Nil => None,
            Self::Text(text) => Some(text),
            Self::Int(_) | Self::Array(_) | Self::Error(_) => panic!("not a string: {self:?}"),
        }
    }

    /// The integer; panics on anything else.
    #[track_caller]
    pub fn into_int(self) -> i64 {
        match self {
            Self::Int(int) => int,
            Self::Nil | Self::Text(_) | Self::Array(_) | Self::Error(_) => {
                panic!("not an integer: {self:?}")
            }
        }
    }

    /// The elements; panics on anything else.
    #[track_caller]
    pub fn into_array(self) -> Vec<Self> {
        match self {
            Self::Array(items) => items,
            Self::Nil | Self::Int(_) | Self::Text(_) | Self::Error(_) => {
                panic!("not an array: {self:?}")
            }
        }
    }
}

/// A blocking connection to one server.
#[derive(Debug)]
pub struct Conn {
    stream: BufReader<TcpStream>,
}

impl Conn {
    /// Connects to `addr` ("127.0.0.1:6379"); `timeout` bounds the connect and then each single
    /// read and write.
    ///
    /// # Errors
    ///
    /// Whatever the connect failed with.
    pub fn open(addr: &str, timeout: Duration) -> io::Result<Self> {
        let addr: SocketAddr = addr.parse().map_err(|e| invalid(format!("{addr}: {e}")))?;
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its reply. An error reply is a [`Reply::Error`], not an `Err`.
    ///
    /// # Errors
    ///
    /// The connection ended or timed out, or the server does not speak RESP2. The connection is of
    /// no use afterwards: a late reply would be taken for the reply to the next command.
    pub fn command(&mut self, args: &[&str]) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends one command without waiting for its reply.
    ///
    /// # Errors
    ///
    /// The connection ended, or the peer does not take the bytes in time.
    pub fn send(&mut self, args: &[&str]) -> io::Result<()> {
        // One write for the whole command, so that a proxy sees it as one piece.
        let mut wire = format!("*{}\r\n", args.len());
        for arg in args {
            wire.push_str(&format_bulk(arg));
        }
        self.stream.get_mut().write_all(wire.as_bytes())
    }

    /// Reads the next reply.
    ///
    /// # Errors
    ///
    /// As for [`command`](Self::command).
    pub fn receive(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(invalid("an empty line where a reply should start"));
        };
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(rest.parse().map_err(|_| invalid(&line))?)),
            "$" => self.bulk(rest),
            "*" => self.array(rest),
            _ => Err(invalid(&line)),
        }
    }

    /// Ends the connection and returns once the server has let go of it too, so that it no longer
    /// shows in the server's list of clients.
    pub fn close(self) {
        let mut stream = self.stream.into_inner();
        stream.shutdown(Shutdown::Write).ok();
        io::copy(&mut stream, &mut io::sink()).ok();
    }

    fn bulk(&mut self, length: &str) -> io::Result<Reply> {
        if length == "-1" {
            return Ok(Reply::Nil);
        }
        let length: usize = length.parse().map_err(|_| invalid(length))?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        self.stream.read_exact(&mut [0; 2])?;
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn array(&mut self, length: &str) -> io::Result<Reply> {
        if length == "-1" {
            return Ok(Reply::Nil);
        }
        let length: usize = length.parse().map_err(|_| invalid(length))?;
        (0..length).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::Array)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        // A line cut short must not pass for a whole one: ":12" could be the head of ":123".
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        Ok(line.to_owned())
    }
}

fn format_bulk(arg: &str) -> String {
    format!("${}\r\n{arg}\r\n", arg.len())
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
