package policy_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
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
		without option.Without
		lines   []string
		want    string
	}{
		{"header:X", "share", []string{"a", "b"}, "a, b"},
		{"header:X", "share", []string{"a", "a"}, "a"},
		{"header:X", "share", []string{"a", "b", "c", "d"}, "a, b, c, d"},
		{"header:X", "share", []string{"a", "b", "c", "d", "e"}, "%several"},
		{"header:X", "share", []string{"%several"}, "%25several"},
		{"header:X", "share", []string{"", "a"}, "%empty, a"},
		{"header:X", "skip", []string{"", "a"}, "a"},
		{"header:X", "skip", []string{""}, ""},
		{"header:X|host", "share", []string{"a", "b"}, "1|a, 1|b"},
		{"header:X|host", "share", []string{"", "b"}, "1|b, 2|h"},
		{"tier|header:X", "share", []string{"a", "b"}, "1|t"},
		{"header:X", "refuse", []string{"", "a"}, "a"},
		{"route", "share", nil, "r1, r2"},
	} {
		f := &policy.Facts{Path: "/", Tier: "t", Host: "h", Header: http.Header{"X": test.lines}}
		f.SetRoutes([]string{"r1", "r2"})
		r := policy.Rule{CountBy: []string{test.countBy}, WithoutHeader: test.without}
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

// without_header decides what happens to requests without the header. A preflight of a browser, which cannot
// send the header, counts by its client instead.
func TestRequestsWithoutHeader(t *testing.T) {
	for _, test := range []struct {
		without   option.Without
		countBy   string
		mode      option.Mode
		preflight bool
		want      string
	}{
		{"", "header:X", "", false, "%empty"},
		{"share", "header:X", "", false, "%empty"},
		{"share", "header:X", "", true, "%preflight:192.0.2.7"},
		{"skip", "header:X", "", false, ""},
		{"skip", "header:X", "", true, ""},
		{"refuse", "header:X", "", false, "401"},
		{"refuse", "header:X", "", true, "%preflight:192.0.2.7"},
		{"refuse", "header:X", "shadow", false, ""},
		{"refuse", "host|header:X", "", false, "1|h"},
		{"refuse", "header:X|host", "", false, "2|h"},
		{"refuse", "key", "", false, ""},
		{"refuse", "route|header:X", "", true, "2|%preflight:192.0.2.7"},
	} {
		r := policy.Rule{Name: "r", CountBy: []string{test.countBy}, WithoutHeader: test.without,
			Mode: test.mode, Limits: perHour(1)}
		f := &policy.Facts{Path: "/", Host: "h", Address: netip.MustParseAddr("192.0.2.7"),
			Header: http.Header{"X": {""}}, Preflight: test.preflight}
		v := mustDecide(t, []policy.Rule{r}, f, nil)
		got := ""
		if len(v.Hits) > 0 {
			got = v.Hits[0].Key
		}
		if v.Reason == policy.NoKey {
			got = fmt.Sprint(v.Status)
		}
		if got != test.want {
			t.Errorf("%+v: got %s, want %s", test, got, test.want)
		}
	}
}
