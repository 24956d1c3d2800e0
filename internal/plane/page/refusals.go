package page

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// decide adds what the audit log has, and says what became of requests in the minute that is asked about, or in that of the
// last refusal. Without a history there is none.
func (w *whyAsked) decide(ctx context.Context, db *admin.Database) error {
	w.said = "No refusal of " + w.Who + " is recorded."
	if w.query.Most == 0 {
		return nil
	}
	found, err := db.Audit(ctx, &w.query)
	for _, d := range found {
		w.Refused = w.Refused || slices.Contains(refusals, d.Text("decision"))
		d.Set("text", decisionText(w.rules, &d))
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
			var last *admin.Row
			if last, err = w.last(ctx, db, w.query.Period, kinds); last != nil {
				w.minute = last.Get("time").(time.Time)
			}
		}
	}
	if err == nil && !w.minute.IsZero() {
		w.said, err = w.say(ctx, db)
	}
	return err
}

// last is the last row of a period that has one of these decisions; nil: there is none.
func (w *whyAsked) last(ctx context.Context, db *admin.Database, p admin.Period, decisions []string) (*admin.Row, error) {
	q := w.query
	q.Period, q.Decisions, q.Most = p, decisions, 1
	found, err := db.Audit(ctx, &q)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// say is the sentence about the minute, or about the nearest one with refusals.
func (w *whyAsked) say(ctx context.Context, db *admin.Database) (string, error) {
	at := minuteText(w.minute, w.now)
	p, refused, failed, err := w.minuteOf(ctx, db, w.minute)
	kinds, said := refusals, fmt.Sprintf("%s was refused %s at %s. ", w.Who, times(refused), at)
	switch {
	case err != nil:
		return "", err
	case refused == 0 && failed == 0:
		said = fmt.Sprintf("%s was not refused at %s.", w.Who, at)
		q := w.query
		q.Period = admin.Period{From: p.From.Add(-nearTime), Until: p.Until.Add(nearTime)} // the log is read whole
		nearest, err := db.NearestRefusal(ctx, &q, w.minute)
		if err != nil || nearest == nil {
			return said + " No refusal is recorded within a day of it.", err
		}
		w.Found = true
		_, refused, _, err := w.minuteOf(ctx, db, *nearest)
		return said + fmt.Sprintf(" The nearest minute with refusals: %s at %s.", times(refused), minuteText(*nearest, w.now)), err
	case refused == 0:
		kinds, said = []string{"error"}, fmt.Sprintf("%s had no decision %s at %s. The last: ", w.Who, times(failed), at)
	}
	last, err := w.last(ctx, db, p, kinds)
	if last != nil {
		said += decisionText(w.rules, last)
	}
	if refused > 0 && failed > 0 {
		said += " In the same minute " + counted(failed, "request", "requests") + " had no decision."
	}
	return said, err
}

// minuteOf returns the minute of a time, how many requests were refused in it, and how many had no decision.
func (w *whyAsked) minuteOf(ctx context.Context, db *admin.Database, t time.Time) (p admin.Period, refused, failed int64, err error) {
	from := t.Truncate(time.Minute)
	q := w.query
	q.Period = admin.Period{From: from, Until: from.Add(time.Minute)}
	decided, err := db.Decided(ctx, &q)
	for _, name := range refusals {
		refused += decided[name]
	}
	return q.Period, refused, decided["error"], err
}
