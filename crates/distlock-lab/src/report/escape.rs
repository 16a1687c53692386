//! Putting text into HTML and JSON into a script, whatever is in it.

/// Text as it may stand between tags or in a quoted attribute.
pub(super) fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // HTML has no way to write these; a lock's name may hold them all the same.
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// JSON as it may stand in a script element: nothing in it can end the element or open a comment.
pub(super) fn script(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A template with its `{{holes}}` filled. What is put in is never looked at again, so a lock that
/// is called `{{data}}` stays one.
pub(super) fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        filled.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        if let Some((_, part)) = parts.iter().find(|(hole, _)| *hole == name) {
            filled.push_str(part);
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// `1 run`, `2 runs`, `4,711 runs`.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { many })
}

/// A number as people read it.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(
            html("<b a=\"1\" c='2'>&\u{7}"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}"
        );
    }

    #[test]
    fn json_cannot_leave_its_script_and_keeps_its_meaning() {
        let name = "</script><!--\u{2028}&";
        let json = script(&serde_json::to_string(name).unwrap());
        assert!(!json.contains('<') && !json.contains('\u{2028}'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        assert_eq!(fill("a{{x}}b{{y}}c{{z}}", &[("x", "{{y}}"), ("y", "2")]), "a{{y}}b2c");
        assert_eq!(fill("no holes", &[]), "no holes");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(1, "run", "runs"), "1 run");
        assert_eq!(count(1_234_567, "run", "runs"), "1,234,567 runs");
        assert_eq!(thousands(0), "0");
    }
}
