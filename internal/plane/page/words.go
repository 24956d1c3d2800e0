package page

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// limitName is the limit of a row of the audit log, for people.
func limitName(rules *ruleNames, prefix string, limit *string) string {
	if prefix == "" {
		return "no limit"
	}
	name, deleted := strings.CutSuffix(rules.shown(prefix), " (deleted)")
	name, isRule := strings.CutPrefix(name, "rule/")
	kind := "the limit "
	if isRule && (limit == nil || *limit == "") {
		kind = "the rule "
	} else if isRule {
		name += "/" + *limit
	}
	if deleted {
		name += " (deleted)"
	}
	return kind + name
}

// reasonNames are the reasons of the audit log for refusals without a limit, in words.
var reasonNames = map[string]string{
	"unknown_key": "unknown API key (401)", "key_expired": "expired API key (401)", "key_revoked": "revoked API key (401)",
	"ambiguous_path": "path with two meanings (400)", "banned": "banned (403)",
}

func reasonName(reason string) string {
	return cmp.Or(reasonNames[reason], strings.ReplaceAll(reason, "_", " "))
}

// oneLine is a text without line breaks: errors of the driver have several lines.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// classWords are the classes of SQLSTATEs by which errors are counted, in words.
var classWords = map[string]string{
	"08": "the connection failed", "0A": "not supported by the server", "22": "a value is not possible", "23": "a constraint does not hold", "25": "read-only server, or wrong state of the transaction",
	"26": "a prepared statement is gone", "28": "wrong password or role", "3D": "no such database", "40": "deadlock, or conflict of transactions", "42": "a table, a column or a right is missing",
	"53": "no connections, memory or disk left", "54": "a limit of the server", "55": "a lock is not free, or wrong state of an object", "57": "server stopped, or statement cancelled",
	"58": "error of the server’s system", "XX": "internal error of the server",
}

// errorsText has the counts of errors by class, with the meanings of SQLSTATEs.
func errorsText(counts map[string]int64) map[string]int64 {
	shown := map[string]int64{}
	for class, n := range counts {
		if words := classWords[class]; words != "" {
			class += " (" + words + ")"
		}
		shown[class] = n
	}
	return shown
}

// decisionText is a row of the audit log in words.
func decisionText(rules *ruleNames, d *admin.Audited) string {
	reason := ""
	if d.Reason != nil {
		reason = *d.Reason
	}
	limit := limitName(rules, d.Prefix, d.Limit)
	switch d.Decision {
	case "allowed":
		if reason == "paused" {
			return "Passed: all limits were paused."
		}
		if d.Quota == nil {
			return "Passed: no limit applied."
		}
		left := ""
		if d.Remaining != nil {
			left = fmt.Sprintf(", %s of %s left", number(*d.Remaining), number(*d.Quota))
		}
		return "Passed " + limit + left + "."
	case "limited":
		if reason == "no_quota" {
			return "Refused by " + limit + ": its quota is 0."
		}
		text := "Refused by " + limit
		if d.Quota != nil {
			used := *d.Quota
			if d.Remaining != nil {
				used -= *d.Remaining
			}
			text += fmt.Sprintf(": %s of %s were used", number(used), number(*d.Quota))
		}
		text += "."
		if d.RetryAfter != nil && *d.RetryAfter > 0 {
			text += " It would have passed " + span(time.Duration(*d.RetryAfter*float64(time.Second))) + " later."
		}
		return text
	case "shadow":
		return "Would have been refused by " + limit + ", which is on trial."
	case "error":
		passed := "it passed"
		if d.Status != nil {
			passed = fmt.Sprintf("it got status %d", *d.Status)
		}
		return "No decision (" + reason + "): " + passed + "."
	}
	if d.Decision == "blocked" && d.Prefix != "" {
		return "Refused by " + limit + ", which blocks."
	}
	return "Refused: " + reasonName(reason) + "."
}

// summary is the answer in a sentence or two.
func (w *whyAsked) summary() string {
	var text []string
	a, now := w.answer, w.now
	for _, b := range a.Bans {
		until := "for ever"
		if b.Until != nil {
			until = "until " + clock(*b.Until, now)
		}
		line := fmt.Sprintf("The %s %s is banned %s by %s", b.Kind, b.Banned, until, b.BannedBy)
		if b.Reason != nil {
			line += ": " + *b.Reason
		}
		text = append(text, line+".")
	}
	if w.refused {
		return strings.Join(append(text, w.said), " ")
	}
	if !a.Found && len(text) == 0 && !w.unread {
		return fmt.Sprintf("Nothing is known of %s: no user, no API key, no ban, no counter and no recorded decision.", a.Who)
	}
	text = append(text, w.said)
	for _, c := range a.Counters {
		if c.Quota != nil && c.Used >= *c.Quota {
			line := fmt.Sprintf("%s: %s of %s are used", c.Prefix, number(c.Used), number(*c.Quota))
			if c.Resets != nil {
				line += ". It resets at " + clock(*c.Resets, now)
			}
			text = append(text, line+".")
		}
	}
	return strings.Join(text, " ")
}

// nextText is what the policy does with the next request, in words.
func nextText(e *admin.Explanation, now time.Time) string {
	switch e.Result {
	case "refused":
		reason := reasonName(e.Reason)
		text := fmt.Sprintf("The next request would be refused with status %d: %s.", e.Status, reason)
		for _, l := range e.Limits {
			if !l.Passes && !l.Shadow && !l.Overage && l.RetryAfter != nil {
				return text + " It would pass at " + clock(now.Add(time.Duration(*l.RetryAfter*float64(time.Second))), now) + "."
			}
		}
		return text
	case "exempt":
		return "The next request would pass: the rule " + e.Rule + " exempts it from all limits."
	case "limited":
		text := "The next request would pass the policy"
		for _, l := range e.Limits {
			if l.Left != nil && l.Quota != nil && !l.Shadow {
				return text + fmt.Sprintf(", and leave %s of %s of %s/%s.", number(max(*l.Left-l.Cost, 0)), number(*l.Quota), l.Rule, l.Limit)
			}
		}
		return text + "."
	}
	return "The next request would pass the policy: no rule limits it."
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

func millisecondsText(n *float64) string {
	switch {
	case n == nil:
		return dash
	case *n < 10:
		return strconv.FormatFloat(rounded(*n), 'f', -1, 64) + " ms"
	}
	return number(int64(*n+0.5)) + " ms"
}

func numberText(n *int64) string {
	if n == nil {
		return dash
	}
	return number(*n)
}
