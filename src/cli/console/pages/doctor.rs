//! The doctor's findings.

use super::{
    ApiRefusal, Block, Finding, Value, View, Visit, label, link_of, request, rows, sentence, text, without_pages,
};

pub(super) async fn view(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Doctor".to_owned(), menu: "/doctor", ..View::default() };
    let [findings] = visit.answers(&mut view, [request("doctor", &[])]).await?;
    if findings.is_null() {
        return Ok(view);
    }
    let count = |word: &str| rows(&findings).filter(|finding| text(finding, "severity") == word).count();
    let problems = count("problem");
    let risks = count("risk");
    view.verdict = Some(format!("Problems: {problems}. Risks: {risks}. Notes: {}.", count("note")));
    view.tone = if problems > 0 {
        "bad"
    } else if risks > 0 {
        "wait"
    } else {
        "good"
    };
    view.blocks.extend(rows(&findings).map(|finding| Block::Finding(of(finding))));
    Ok(view)
}

fn of(finding: &Value) -> Finding {
    let sentences = ["evidence", "matters", "fix"].map(|name| without_pages(text(finding, name)));
    let link = link_of(text(finding, "command"));
    Finding {
        tone: match text(finding, "severity") {
            "problem" => "bad",
            "risk" => "wait",
            _ => "",
        },
        title: format!("{}: {}", label(text(finding, "severity")), label(text(finding, "finding"))),
        sentences: sentences.iter().filter(|text| !text.is_empty()).map(|text| sentence(text)).collect(),
        link,
        command: text(finding, "command").to_owned(),
        run_in: if text(finding, "run_in") == "mysql" { "In a client of the database" } else { "In a shell" },
    }
}
