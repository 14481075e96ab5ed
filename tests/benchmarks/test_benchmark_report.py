import report


def test_the_page_agrees_with_the_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.render(), "run: python benchmarks/report.py"


def test_a_table_marks_the_ratio_of_the_best_settings() -> None:
    speeds = {"headway a": 6.0, "headway b": 8.0, "ctranslate2 a": 4.0, "ctranslate2 b": 2.0, "transformers": 1.0}
    rendered = report.forced_table({"batch 1": {name: {"tokens_per_s": speed} for name, speed in speeds.items()}})
    assert "| **best of Headway / best of ctranslate2** | **2.00** |" in rendered
    assert "| **best of Headway / best of transformers** | **8.00** |" in rendered
