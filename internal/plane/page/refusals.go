package page

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// nearTime is how far from a minute another one with refusals is looked for.
const nearTime = 24 * time.Hour

// refusals are the decisions by which requests are refused.
var refusals = []string{"limited", "blocked", "rejected"}

// addDecisions adds what the audit log has, and says what became of requests in the minute that is asked about, or in
// that of the last refusal. Without a history there is none.
func (w *whyAsked) addDecisions() {
	a := w.answer
	w.said = "No refusal of " + a.Who + " is recorded."
	if w.query.Most == 0 {
		return
	}
	if a.User == nil && (a.Kind == kindUser || a.Kind == kindCounter) {
		w.query.Key = w.counter // a user whom only the proxies know may be one
	}
	db, err := w.at.at(w.ctx, ofHistory)
	if err == nil {
		err = w.readDecisions(db)
	}
	if err != nil {
		text := "The history cannot be read: " + err.Error()
		a.DecisionsRemark = &text
		w.unread = true
		w.said = "Whether " + a.Who + " was refused is not known: the history cannot be read."
	}
}

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
		what, others := "request of "+a.Who+" that was allowed", "."
		if len(found) == 0 {
			what, others = "decision about "+a.Who, ", and without `history` nothing."
		}
		text := "The audit log has no " + what + " of the 30 days until " + minuteText(w.query.Until, w.now) + ". With `audit denied`, the default, it records no request that was allowed" + others
		a.DecisionsRemark = &text
	}
	if w.minute.IsZero() {
		at := slices.IndexFunc(found, func(d admin.Audited) bool {
			return slices.Contains(refusals, d.Decision) || d.Decision == "error" && d.Status != nil
		})
		switch {
		case at >= 0:
			w.minute = found[at].Time
		case len(found) < mostDecisions:
			return nil
		default: // the last refusal is older than these
			last, err := w.last(db, w.query.Period, refusals...)
			if err != nil || last == nil {
				return err
			}
			w.minute = last.Time
		}
	}
	return w.say(db)
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

// minuteOf returns the minute of a time, and how many requests had which decision in it.
func (w *whyAsked) minuteOf(db *admin.Database, t time.Time) (p admin.Period, decided map[string]int64, refused int64, err error) {
	from := t.Truncate(time.Minute)
	p = admin.Period{From: from, Until: from.Add(time.Minute)}
	q := w.query
	q.Period = p
	decided, err = db.Decided(w.ctx, &q)
	for _, name := range refusals {
		refused += decided[name]
	}
	return p, decided, refused, err
}

// say makes the sentence about the minute.
func (w *whyAsked) say(db *admin.Database) error {
	who, minute := w.answer.Who, w.minute
	p, decided, refused, err := w.minuteOf(db, minute)
	if err != nil {
		return err
	}
	at, failed := minuteText(minute, w.now), decided["error"]
	switch {
	case refused > 0:
		last, err := w.last(db, p, refusals...)
		if err != nil || last == nil {
			return err
		}
		w.refused = true
		w.said = fmt.Sprintf("%s was refused %s at %s. %s", who, times(refused), at, w.text(last))
		if failed > 0 {
			w.said += fmt.Sprintf(" In the same minute %s had no decision.", plural(int(failed), "1 request", number(failed)+" requests"))
		}
	case failed > 0:
		last, err := w.last(db, p, "error")
		if err != nil || last == nil {
			return err
		}
		w.said = fmt.Sprintf("%s had no decision %s at %s. The last: %s", who, times(failed), at, w.text(last))
	default:
		w.said = fmt.Sprintf("%s was not refused at %s.", who, at)
		q := w.query
		q.Period = admin.Period{From: p.From.Add(-nearTime), Until: p.Until.Add(nearTime)} // the log is read whole
		nearest, err := db.NearestRefusal(w.ctx, &q, minute)
		if err != nil {
			return err
		}
		if nearest == nil {
			w.said += " No refusal is recorded within a day of it."
			return nil
		}
		w.answer.Found = true
		_, _, refused, err := w.minuteOf(db, *nearest)
		w.said += fmt.Sprintf(" The nearest minute with refusals: %s at %s.", times(refused), minuteText(*nearest, w.now))
		return err
	}
	return nil
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
