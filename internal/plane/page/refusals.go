package page

import (
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// nearTime is how far from a minute another one with refusals is looked for.
const nearTime = 24 * time.Hour

// refusals are the decisions by which requests are refused.
var refusals = []string{"limited", "blocked", "rejected"}

// decisions adds what the audit log has, and says what became of requests in the minute that is asked about, or in that
// of the last refusal. Without a history there is none.
func (w *whyAsked) decisions() (said string) {
	a := w.answer
	said = "No refusal of " + a.Who + " is recorded."
	if w.query.Most == 0 {
		return said
	}
	if a.User == nil && (a.Kind == kindUser || a.Kind == kindCounter) {
		w.query.Key = w.counter // a user whom only the proxies know may be one
	}
	db, err := w.at.at(w.ctx, ofHistory)
	if err == nil {
		err = w.readDecisions(db)
	}
	if err == nil && w.minute.IsZero() {
		var last *admin.Audited
		if last, err = w.last(db, w.query.Period, refusals...); err == nil && last == nil {
			last, err = w.last(db, w.query.Period, "error")
		}
		if last != nil {
			w.minute = last.Time
		}
	}
	if err == nil && !w.minute.IsZero() {
		said, err = w.say(db)
	}
	if err != nil {
		text := "The history cannot be read: " + err.Error()
		a.DecisionsRemark, w.unread = &text, true
		said = "Whether " + a.Who + " was refused is not known: the history cannot be read."
	}
	return said
}

// readDecisions adds the last decisions.
func (w *whyAsked) readDecisions(db *admin.Database) error {
	a := w.answer
	found, err := db.Audit(w.ctx, &w.query)
	if err != nil {
		return err
	}
	allowed := false
	for i := range found {
		allowed = allowed || found[i].Decision == "allowed"
		a.Decisions = append(a.Decisions, shownDecision{found[i], w.text(&found[i])})
	}
	if !allowed && len(found) < mostDecisions { // these are all
		text := "In the 30 days until " + minuteText(w.query.Until, w.now) + " the audit log has no request of " + a.Who +
			" that was allowed. With `audit denied`, the default, it has refusals only, and without `history` nothing."
		a.DecisionsRemark = &text
	}
	return nil
}

// last returns the last row of a period that has one of these decisions; nil: none has.
func (w *whyAsked) last(db *admin.Database, p admin.Period, decisions ...string) (*admin.Audited, error) {
	q := w.query
	q.Period, q.Decisions, q.Most = p, decisions, 1
	found, err := db.Audit(w.ctx, &q)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// minuteOf returns the minute of a time, how many requests were refused in it, and how many had no decision.
func (w *whyAsked) minuteOf(db *admin.Database, t time.Time) (p admin.Period, refused, failed int64, err error) {
	from := t.Truncate(time.Minute)
	p = admin.Period{From: from, Until: from.Add(time.Minute)}
	q := w.query
	q.Period = p
	decided, err := db.Decided(w.ctx, &q)
	for _, name := range refusals {
		refused += decided[name]
	}
	return p, refused, decided["error"], err
}

// say is the sentence about the minute.
func (w *whyAsked) say(db *admin.Database) (string, error) {
	who, at := w.answer.Who, minuteText(w.minute, w.now)
	p, refused, failed, err := w.minuteOf(db, w.minute)
	if err != nil {
		return "", err
	}
	kinds, said := refusals, fmt.Sprintf("%s was refused %s at %s. ", who, times(refused), at)
	if refused == 0 {
		kinds, said = []string{"error"}, fmt.Sprintf("%s had no decision %s at %s. The last: ", who, times(failed), at)
	}
	if refused+failed > 0 {
		last, err := w.last(db, p, kinds...)
		if err != nil || last == nil {
			return "", err
		}
		said += w.text(last)
		if refused > 0 && failed > 0 {
			said += " In the same minute " + counted(failed, "request", "requests") + " had no decision."
		}
		return said, nil
	}
	said = fmt.Sprintf("%s was not refused at %s.", who, at)
	q := w.query
	q.Period = admin.Period{From: p.From.Add(-nearTime), Until: p.Until.Add(nearTime)} // the log is read whole
	nearest, err := db.NearestRefusal(w.ctx, &q, w.minute)
	if err != nil {
		return "", err
	}
	if nearest == nil {
		return said + " No refusal is recorded within a day of it.", nil
	}
	w.answer.Found = true
	_, refused, _, err = w.minuteOf(db, *nearest)
	return said + fmt.Sprintf(" The nearest minute with refusals: %s at %s.", times(refused), minuteText(*nearest, w.now)), err
}

// text is a row of the audit log in words.
func (w *whyAsked) text(d *admin.Audited) string {
	c := w.server.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	return decisionText(c.rules, d)
}

// times is how often something was, in words.
func times(n int64) string { return plural(int(n), "once", number(n)+" times") }

// minuteText is a minute of the past, with its day.
func minuteText(t, now time.Time) string {
	text := t.UTC().Format("15:04 UTC")
	if day := t.UTC().Format(time.DateOnly); day != now.UTC().Format(time.DateOnly) {
		return text + " on " + day
	}
	return text + " today"
}
