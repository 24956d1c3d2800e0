package policy

import "strings"

// isAmbiguous reports whether a request, whose path has parameters, has another verdict without
// them: another refusal, an exemption, or another limit that is enforced. Verdicts are compared, and
// not the rules that match: a rule that gives the verdict in both readings still gives it.
func isAmbiguous(set *ruleSet, f *Facts, sender *amounts, at int64, o *Verdict) bool {
	for _, path := range withoutParameters(f.Path) {
		without := *f
		without.Path = path
		without.trace = nil
		other := Verdict{User: o.User, Tier: o.Tier, KeyID: o.KeyID, Unread: o.Unread}
		tryRules(matching(set, &without, &other), &without, sender, at, &other)
		if other.Reason != o.Reason || other.Mark != o.Mark || other.Exempt != o.Exempt || !sameLimits(other.Marks, o.Marks) {
			return true
		}
	}
	return false
}

// sameLimits reports whether two lists have the same marks, except for those of shadow rules.
func sameLimits(a, b []*Mark) bool {
	j := 0
	for i := range a {
		if a[i].Shadow {
			continue
		}
		for j < len(b) && b[j].Shadow {
			j++
		}
		if j == len(b) || a[i] != b[j] {
			return false
		}
		j++
	}
	for j < len(b) && b[j].Shadow {
		j++
	}
	return j == len(b)
}

// RefuseAmbiguous refuses a request, whatever the verdict was.
func RefuseAmbiguous(o *Verdict) {
	o.Hits = o.Hits[:0]
	o.Marks = o.Marks[:0]
	o.Simple = false
	o.Exempt = false
	o.Rule = ""
	o.Counter = ""
	o.Mark = nil
	o.Reason = AmbiguousPath
	o.Status = 400
	o.Message = ""
	o.RetryAfter = 0
}

// withoutParameters are the readings of a path of NormalPath in which the parameters are ignored. An
// encoded slash may be a part of a parameter, or end it.
func withoutParameters(text string) []string {
	readings := []string{cutParameters(text, "/")}
	if strings.IndexByte(text, '\\') >= 0 {
		readings = append(readings, cutParameters(text, "/\\"))
	}
	return readings
}

// cutParameters removes the parameters of all segments, which any of the bytes in ends ends.
func cutParameters(text, ends string) string {
	rest := make([]byte, 0, len(text))
	inside := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		inside = c == ';' || inside && strings.IndexByte(ends, c) < 0
		if !inside && !(c == '/' && len(rest) > 0 && rest[len(rest)-1] == '/') {
			rest = append(rest, c)
		}
	}
	if last := len(rest) - 1; last > 0 && rest[last] == '/' {
		rest = rest[:last]
	}
	return string(rest)
}
