//! Lines of bounded length.

use std::io::{self, BufRead, Read};

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its end, or the rest of the stream.
    Whole(Vec<u8>),
    /// The line is longer than allowed; its rest was not read.
    TooLong,
    /// The stream has ended.
    End,
}

/// Reads the next line, of at most `most` bytes.
pub(crate) fn next_line(stream: &mut impl BufRead, most: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let read = stream.take(most as u64 + 1).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > most {
        return Ok(Line::TooLong);
    }
    Ok(Line::Whole(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_long_as_it_may_be_and_no_longer() {
        let mut stream = &b"1234\n12345\nend"[..];
        let mut next = |most| next_line(&mut stream, most).unwrap();
        assert_eq!(next(4), Line::Whole(b"1234".into()));
        assert_eq!(next(5), Line::Whole(b"12345".into()));
        assert_eq!(next(3), Line::Whole(b"end".into()));
        assert_eq!(next(3), Line::End);
        assert_eq!(next_line(&mut &b"12345\n"[..], 4).unwrap(), Line::TooLong);
    }
}
