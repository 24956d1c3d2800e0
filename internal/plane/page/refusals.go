package page

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// decisions adds what the audit log has, and says what became of requests in the minute that is asked about, or in that
// of the last refusal. Without a history there is none.
func (w *whyAsked) decisions() (said string, err error) {
	said = "No refusal of " + w.Who + " is recorded."
	if w.query.Most == 0 {
		return said, nil
	}
	if w.User == nil && (w.Kind == kindUser || w.Kind == kindCounter) {
		w.query.Key = w.counter // a user whom only the proxies know may be one
	}
	db, err := w.at.at(w.ctx, ofHistory)
	if err != nil {
		return "", err
	}
	found, err := db.Audit(w.ctx, &w.query)
	for _, d := range found {
		w.Refused = w.Refused || slices.Contains(refusals, d.Text("decision"))
		d.Add("text", w.text(&d))
		w.Decisions = append(w.Decisions, d)
	}
	isAllowed := func(d admin.Row) bool { return d.Text("decision") == "allowed" }
	if len(found) < mostDecisions && !slices.ContainsFunc(found, isAllowed) { // these are all
		text := "In the 30 days until " + minuteText(w.query.Until, w.now) + " the audit log has no request of " + w.Who +
			" that was allowed. With `audit denied`, the default, it has refusals only, and without `history` nothing."
		w.DecisionsRemark = &text
	}
	for _, kinds := range [][]string{refusals, {"error"}} {
		if w.minute.IsZero() && err == nil {
			var last []admin.Row
			if last, err = w.last(db, w.query.Period, kinds); len(last) > 0 {
				w.minute = last[0].Get("time").(time.Time)
			}
		}
	}
	if err != nil || w.minute.IsZero() {
		return said, err
	}
	return w.say(db)
}

// last has the last row of a period that has one of these decisions.
func (w *whyAsked) last(db *admin.Database, p admin.Period, decisions []string) ([]admin.Row, error) {
	q := w.query
	q.Period, q.Decisions, q.Most = p, decisions, 1
	return db.Audit(w.ctx, &q)
}

// minuteOf returns the minute of a time, how many requests were refused in it, and how many had no decision.
func (w *whyAsked) minuteOf(db *admin.Database, t time.Time) (p admin.Period, refused, failed int64, err error) {
	from := t.Truncate(time.Minute)
	q := w.query
	q.Period = admin.Period{From: from, Until: from.Add(time.Minute)}
	decided, err := db.Decided(w.ctx, &q)
	for _, name := range refusals {
		refused += decided[name]
	}
	return q.Period, refused, decided["error"], err
}

// say is the sentence about the minute.
func (w *whyAsked) say(db *admin.Database) (string, error) {
	at := minuteText(w.minute, w.now)
	p, refused, failed, err := w.minuteOf(db, w.minute)
	if err != nil {
		return "", err
	}
	if refused == 0 && failed == 0 {
		return w.sayNearest(db, p)
	}
	kinds, said := refusals, fmt.Sprintf("%s was refused %s at %s. ", w.Who, times(refused), at)
	if refused == 0 {
		kinds, said = []string{"error"}, fmt.Sprintf("%s had no decision %s at %s. The last: ", w.Who, times(failed), at)
	}
	last, err := w.last(db, p, kinds)
	for i := range last {
		said += w.text(&last[i])
	}
	if refused > 0 && failed > 0 {
		said += " In the same minute " + counted(failed, "request", "requests") + " had no decision."
	}
	return said, err
}

// sayNearest is the sentence about a minute without refusals.
func (w *whyAsked) sayNearest(db *admin.Database, p admin.Period) (string, error) {
	said := fmt.Sprintf("%s was not refused at %s.", w.Who, minuteText(w.minute, w.now))
	q := w.query
	q.Period = admin.Period{From: p.From.Add(-nearTime), Until: p.Until.Add(nearTime)} // the log is read whole
	nearest, err := db.NearestRefusal(w.ctx, &q, w.minute)
	if err != nil || nearest == nil {
		return said + " No refusal is recorded within a day of it.", err
	}
	w.Found = true
	_, refused, _, err := w.minuteOf(db, *nearest)
	return said + fmt.Sprintf(" The nearest minute with refusals: %s at %s.", times(refused), minuteText(*nearest, w.now)), err
}

// text is a row of the audit log in words.
func (w *whyAsked) text(d *admin.Row) string {
	c := w.server.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	return decisionText(c.rules, d)
}
