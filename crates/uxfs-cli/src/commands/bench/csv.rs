//! Measurements as comma-separated values (RFC 4180), a line each.

use crate::exit::Result;
use serde_json::{Map, Value};
use std::io::Write;
use uxfs_bench::Measurement;

/// Columns, by the names that JSON has for them.
const COLUMNS: [&str; 14] = [
    "workload",
    "target",
    "device",
    "locking",
    "op",
    "threads",
    "depth",
    "bytes",
    "ops_per_s",
    "mib_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "median_of",
];

/// Prints the names of the columns, and a line for each measurement.
pub fn print(out: &mut impl Write, lines: &[Measurement]) -> Result<()> {
    write!(out, "{}\r\n", COLUMNS.join(","))?;
    for line in lines {
        let fields = match serde_json::to_value(line).map_err(std::io::Error::from)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let fields: Vec<String> = COLUMNS.iter().map(|&column| field(fields.get(column))).collect();
        write!(out, "{}\r\n", fields.join(","))?;
    }
    Ok(())
}

/// One field; what has none is empty.
fn field(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if text.contains([',', '"', '\r', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_column_and_text_is_quoted_where_it_must_be() {
        let line = Measurement {
            workload: "osync",
            target: "device".into(),
            device: "memory, \"flush\" 1 ms".into(),
            locking: None,
            op: "device write",
            threads: 64,
            depth: 1,
            bytes: Some(65536),
            ops_per_s: 1.5,
            mib_per_s: Some(0.25),
            p50_us: Some(2.0),
            p99_us: Some(3.0),
            p999_us: Some(4.0),
            median_of: 5,
        };
        let Value::Object(fields) = serde_json::to_value(&line).unwrap() else { panic!("an object") };
        assert!(fields.keys().all(|name| COLUMNS.contains(&name.as_str())) && fields.len() == COLUMNS.len());
        let mut out = Vec::new();
        print(&mut out, &[line]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected =
            "osync,device,\"memory, \"\"flush\"\" 1 ms\",,device write,64,1,65536,1.5,0.25,2.0,3.0,4.0,5\r\n";
        assert_eq!(text.split_once("\r\n").unwrap().1, expected);
    }
}
