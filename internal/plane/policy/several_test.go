package policy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// keysOf returns the keys that a request is charged to by a rule that counts by something.
func keysOf(t *testing.T, r policy.Rule, f *policy.Facts, id *policy.Identity) string {
	t.Helper()
	r.Name, r.Limits = "r", perHour(1)
	var keys []string
	for _, h := range mustDecide(t, []policy.Rule{r}, f, id).Hits {
		keys = append(keys, h.Key)
	}
	return strings.Join(keys, ", ")
}

// Each of several values of a header is charged, up to four; more share one row. Equal values are one.
func TestEachValueOfHeaderIsCharged(t *testing.T) {
	for _, test := range []struct {
		countBy string
		skip    bool
		lines   []string
		want    string
	}{
		{"header:X", false, []string{"a", "b"}, "a, b"},
		{"header:X", false, []string{"a", "a"}, "a"},
		{"header:X", false, []string{"a", "b", "c", "d"}, "a, b, c, d"},
		{"header:X", false, []string{"a", "b", "c", "d", "e"}, "%several"},
		{"header:X", false, []string{"%several"}, "%25several"},
		{"header:X", false, []string{"", "a"}, "%empty, a"},
		{"header:X", true, []string{"", "a"}, "a"},
		{"header:X", true, []string{""}, ""},
		{"header:X|host", false, []string{"a", "b"}, "1|a, 1|b"},
		{"header:X|host", false, []string{"", "b"}, "1|b, 2|h"},
		{"tier|header:X", false, []string{"a", "b"}, "1|t"},
		{"route", false, nil, "r1, r2"},
	} {
		f := &policy.Facts{Path: "/", Tier: "t", Host: "h", Header: http.Header{"X": test.lines}}
		f.SetRoutes([]string{"r1", "r2"})
		r := policy.Rule{CountBy: []string{test.countBy}, SkipWithoutHeader: test.skip}
		if got := keysOf(t, r, f, nil); got != test.want {
			t.Errorf("count_by %s of %q: got %s, want %s", test.countBy, test.lines, got, test.want)
		}
	}
	f := &policy.Facts{Path: "/", Host: "h", Header: http.Header{"X": {"a", "b"}, "Y": {"c", "d", "e"}}}
	r := policy.Rule{CountBy: []string{"host", "header:X", "header:Y"}}
	if got, want := keysOf(t, r, f, nil), "h a %several, h b %several"; got != want {
		t.Errorf("six combinations: got %s, want %s", got, want)
	}
}

// Where a rule counts by a header that may have the API key, each spelling counts as the key that was
// accepted, whichever header brought it.
func TestAcceptedKeyIsOneValueInEachSpelling(t *testing.T) {
	known := &policy.Identity{Digest: policy.Digest("K"), Known: true, KeyID: 7}
	for _, test := range []struct {
		id     *policy.Identity
		header http.Header
		want   string
	}{
		{known, http.Header{"X-Api-Key": {"K"}}, "K"},
		{known, http.Header{"X-Api-Key": {"Bearer K"}}, "K"},
		{known, http.Header{"X-Api-Key": {"bearer  K"}}, "K"},
		{known, http.Header{"Authorization": {"Bearer K"}}, "K"},
		{known, http.Header{"X-Api-Key": {"17"}}, "K, 17"},
		{nil, http.Header{"X-Api-Key": {"Bearer K"}}, "K"},
		{nil, http.Header{"X-Api-Key": {"17"}}, "17"},
	} {
		f := &policy.Facts{Path: "/", Header: test.header, KeyHeaders: []string{"X-Api-Key", "Authorization"}}
		if test.id != nil {
			f.Key = "K"
		}
		r := policy.Rule{CountBy: []string{"header:X-Api-Key"}}
		if got := keysOf(t, r, f, test.id); got != test.want {
			t.Errorf("%v: got %s, want %s", fmt.Sprint(test.header), got, test.want)
		}
	}
}
