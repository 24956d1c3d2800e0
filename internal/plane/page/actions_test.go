package page_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// What is taken back is named, with the amounts, in the question and in the answer.
func TestTakingAnOverrideBackNamesIt(t *testing.T) {
	a := ask(t)
	a.exec("SELECT rate_limit_rule('pro', per_minute => 20, per_hour => 500)")
	a.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('gold')")
	a.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ('acme', 'gold')")
	var made doneOfPage
	a.do("override", map[string]any{"user": "acme", "rule": "pro", "limit": "per_minute", "events": 22}, &made)
	if made.Undo == nil {
		t.Fatalf("%+v", made)
	}
	var plan struct {
		Question string
		Effect   []string
	}
	const want = "acme’s pro/per_minute: 22 → 20"
	if a.answer("unoverride", a.by(map[string]any{"user": "acme", "rule": "pro"}), &plan); plan.Question != "Take back "+want+"?" {
		t.Errorf("the question is %q", plan.Question)
	}
	a.answer("undo", a.by(made.Undo.Body), &plan)
	if !strings.HasPrefix(plan.Question, "Take back what postgres (nora) did at ") || !strings.HasPrefix(plan.Effect[0], "override user/acme: created, rule: pro, limit_name: per_minute, events: 22") {
		t.Errorf("the question is %+v", plan)
	}
	var back doneOfPage
	a.do("undo", made.Undo.Body, &back)
	if status, text := send(a.api, "unoverride", a.by(map[string]any{"user": "acme", "rule": "pro"})); status != http.StatusNotFound || !strings.Contains(text, "the sender has none") {
		t.Errorf("again: status %d: %s", status, text)
	}
	if status, text := send(a.api, "undo", a.by(made.Undo.Body)); status != http.StatusUnprocessableEntity || !strings.Contains(text, "something newer has changed") {
		t.Errorf("undo again: status %d: %s", status, text)
	}
	if status, text := send(a.api, "undo", a.by(map[string]any{"change": 1})); status != http.StatusBadRequest || !strings.Contains(text, "bans and overrides alone") {
		t.Errorf("undo of a change of rules: status %d: %s", status, text)
	}
}

// doneOfPage is the answer to an action.
type doneOfPage struct {
	Done string
	Undo *struct{ Body map[string]any }
}

// do does an action, which is asked twice.
func (a *asked) do(name string, body map[string]any, into *doneOfPage) {
	a.Helper()
	var plan struct{ Confirm string }
	a.answer(name, a.by(body), &plan)
	body["confirm"] = plan.Confirm
	a.answer(name, a.by(body), into)
	delete(body, "confirm")
}

// by is a body with the name of a person.
func (a *asked) by(body map[string]any) string {
	a.Helper()
	body["by"] = "nora"
	text, err := json.Marshal(body)
	if err != nil {
		a.Fatal(err)
	}
	return string(text)
}
