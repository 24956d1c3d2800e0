package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// limitName is the limit of a row of the audit log, for people.
func limitName(rules ruleNames, prefix, limit string) string {
	if prefix == "" {
		return "no limit"
	}
	name, deleted := strings.CutSuffix(rules.shown(prefix), " (deleted)")
	name, isRule := strings.CutPrefix(name, "rule/")
	kind := "the limit "
	if isRule && limit == "" {
		kind = "the rule "
	} else if isRule {
		name += "/" + limit
	}
	if deleted {
		name += " (deleted)"
	}
	return kind + name
}

// oneLine is a text without line breaks: errors of the driver have several lines.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// decisionText is a row of the audit log in words.
func decisionText(rules ruleNames, d *admin.Row) string {
	decision, reason, prefix := d.Text("decision"), d.Text("reason"), d.Text("prefix")
	limit := limitName(rules, prefix, d.Text("limit"))
	quota, hasQuota := d.Get("quota").(int64)
	remaining, hasRemaining := d.Get("remaining").(int64)
	switch {
	case decision == "allowed" && !hasQuota:
		return "Passed: no limit applied."
	case decision == "allowed" && !hasRemaining:
		return "Passed " + limit + "."
	case decision == "allowed":
		return fmt.Sprintf("Passed %s, %s of %s left.", limit, number(remaining), number(quota))
	case decision == "limited" && reason == "no_quota":
		return "Refused by " + limit + ": its quota is 0."
	case decision == "limited":
		text := "Refused by " + limit
		if hasQuota {
			text += fmt.Sprintf(": %s of %s were used", number(quota-remaining), number(quota))
		}
		if after, _ := d.Get("retry_after").(float64); after > 0 {
			text += ". It would have passed " + span(time.Duration(after*float64(time.Second))) + " later"
		}
		return text + "."
	case decision == "shadow":
		return "Would have been refused by " + limit + ", which is on trial."
	case decision == "error" && d.Get("status") != nil:
		return fmt.Sprintf("No decision (%s): it got status %d.", reason, d.Get("status"))
	case decision == "error":
		return "No decision (" + reason + "): it passed."
	case decision == "blocked" && prefix != "":
		return "Refused by " + limit + ", which blocks."
	}
	return "Refused: " + admin.ReasonText(reason) + "."
}

// nextText is what the policy does with the next request, in words.
func nextText(e *admin.Explanation, now time.Time) string {
	text := "The next request " + e.Text() + "."
	for _, l := range e.Limits {
		if e.Result == "refused" && !l.Passes && !l.Shadow && !l.Overage && l.RetryAfter != nil {
			return text + " It would pass at " + clock(now.Add(time.Duration(*l.RetryAfter*float64(time.Second))), now) + "."
		}
	}
	return text
}

// dash is for what is not known.
const dash = "–"

// rateText is a number of requests a second.
func rateText(n float64) string {
	switch {
	case n > 0 && n < 0.1:
		return "< 0.1/s"
	case n < 10:
		return strconv.FormatFloat(rounded(n), 'f', -1, 64) + "/s"
	}
	return number(int64(n+0.5)) + "/s"
}

func millisecondsText(n float64) string {
	if n < 10 {
		return strconv.FormatFloat(rounded(n), 'f', -1, 64) + " ms"
	}
	return number(int64(n+0.5)) + " ms"
}

// nodeNames are up to three of some names.
func nodeNames(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return names[0]
}

// plural is one of two texts, and counted the number with it.
func plural(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

func counted(n int64, one, several string) string {
	return number(n) + " " + plural(int(n), one, several)
}

// clock is a time for people, without the day if it is within a day.
func clock(t, now time.Time) string {
	t = t.UTC()
	if t.Sub(now).Abs() < 24*time.Hour {
		return t.Format(time.TimeOnly) + " UTC"
	}
	return t.Format(time.DateTime) + " UTC"
}

// number is a number for people.
func number(n int64) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// span is a duration for people, rounded to what they look at.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	return admin.Span(d)
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
