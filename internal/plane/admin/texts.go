package admin

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// The texts for people that commands and the page share.

// reasonTexts are the reasons of the audit log for refusals without a limit, in words, with the status.
var reasonTexts = map[string]string{
	"unknown_key": "unknown API key (401)", "key_expired": "expired API key (401)", "key_revoked": "revoked API key (401)",
	"ambiguous_path": "path with two meanings (400)", "banned": "banned (403)", "no_quota": "a quota of 0 (429)",
}

// ReasonText is a reason of the audit log in words.
func ReasonText(reason string) string {
	return cmp.Or(reasonTexts[reason], strings.ReplaceAll(reason, "_", " "))
}

// Text is what the policy does with the request, as the end of a sentence about it.
func (e *Explanation) Text() string {
	switch e.Result {
	case refused:
		if strings.HasPrefix(e.Reason, byLimit) {
			return fmt.Sprintf("would be refused with status %d: %s", e.Status, e.Reason)
		}
		reason, _, _ := strings.Cut(ReasonText(e.Reason), " (")
		if e.Rule != "" {
			reason += " by the rule " + e.Rule
		}
		return fmt.Sprintf("would be refused with status %d: %s", e.Status, reason)
	case exempt:
		return "would pass: the rule " + e.Rule + " exempts it from all limits"
	case limited:
		return "would pass, and be charged to limits"
	}
	return "would pass: no limit applies"
}

// State is what a proxy does: live, cannot decide, ended, or gone.
func (n *Node) State() string {
	switch {
	case n.Live && n.Cannot != nil:
		return "cannot decide"
	case n.Live:
		return "live"
	case n.Ended != nil:
		return "ended"
	}
	return "gone"
}

// Span is a duration for people, as in 1h, 1m30s, 7d or 0.5s.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.Round(time.Millisecond).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
