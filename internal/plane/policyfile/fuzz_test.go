package policyfile_test

import (
	"bytes"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
)

// Any text is refused with an error, or is a policy that is written as a text that says the same.
func FuzzParse(f *testing.F) {
	f.Add("tiers: [{tier: free, rank: 1}]\nrules: [{name: r, limits: &l [{name: l, events: 1, per: 90s}]}, {name: s, limits: *l}]\noverrides: []")
	f.Add("a: &a [*a]")
	f.Add("rules: [&r {name: r, valid: ..2026-11-27, mode: off, comment: \"\\u2028 \", networks: [::1]}]")
	f.Add("users: [{user: 0x10, tier: ~, period_start: 2026-01-31, tier_until: never}]")
	f.Fuzz(func(t *testing.T, text string) {
		policy, err := policyfile.Parse([]byte(text))
		if err != nil {
			return
		}
		file, err := policy.Write()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := policyfile.Parse(file)
		if err != nil {
			t.Fatalf("%q becomes %q: %v", text, file, err)
		}
		if changes := policyfile.Diff(policy, again, true); len(changes) > 0 {
			t.Errorf("%q becomes %q: %+v", text, file, changes)
		}
		if twice, err := again.Write(); err != nil || !bytes.Equal(twice, file) {
			t.Errorf("%q becomes %q, then %q, %v", text, file, twice, err)
		}
	})
}
