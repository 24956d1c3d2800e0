package edge_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestNetworksAreExempt(t *testing.T) {
	got, err := read(t, edge.HandlerTable, "exempt", "10.0.0.0/8 192.0.2.7 2001:db8::1/32 ::ffff:192.0.2.8")
	if err != nil {
		t.Fatal(err)
	}
	e, err := got.Exempt.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"10.1.2.3": true, "11.1.2.3": false, "192.0.2.7": true, "192.0.2.8": true, "192.0.2.9": false, "::ffff:10.1.2.3": true, "2001:db8:1::": true, "2001:db9::": false, "fe80::1%eth0": false,
	} {
		if e.IsExempt(http.Header{}, netip.MustParseAddr(address)) != want {
			t.Errorf("%s: %v", address, !want)
		}
	}
	if e.IsExempt(http.Header{}, netip.Addr{}) {
		t.Error("an unknown address is exempt")
	}
	for text, word := range map[string]string{"10.0.0.0/33": "10.0.0.0/33", "10.0.0.1 everybody": "everybody", "fe80::1%eth0": "fe80::1%eth0"} {
		_, err := read(t, edge.HandlerTable, "exempt", text)
		checkField(t, err, "exempt", word)
	}
	if none, err := new(edge.ExemptSettings).Compile(nil); none != nil || err != nil {
		t.Errorf("without settings: %v, %v", none, err)
	}
}

// A header with the secret exempts, and is removed whatever it holds. No error has the secret.
func TestAHeaderWithASecretIsExempt(t *testing.T) {
	const secret = "hunter2-hunter2-hunter2"
	expand := func(text string) (string, error) {
		switch text {
		case "{env.SECRET}":
			return secret, nil
		case "{env.SHORT}":
			return "hunter2", nil
		}
		return "", errors.New("no such placeholder")
	}
	for _, configured := range []string{"x-internal " + secret, "X-Internal {env.SECRET}"} {
		got, err := read(t, edge.HandlerTable, "exempt_header", configured)
		if err != nil {
			t.Fatal(err)
		}
		e, err := got.Exempt.Compile(expand)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			values []string
			want   bool
		}{{[]string{secret}, true}, {nil, false}, {[]string{""}, false}, {[]string{secret + " "}, false}, {[]string{secret[:20]}, false}, {[]string{"{env.SECRET}"}, false}, {[]string{secret, secret}, false}} {
			h := http.Header{"X-Internal": test.values}
			if e.IsExempt(h, netip.Addr{}) != test.want || len(h) != 0 {
				t.Errorf("%s, %q: %v, and %v is left", configured, test.values, !test.want, h)
			}
		}
	}
	for _, configured := range []string{"hunter2hunter2hunter2", "X-Internal hunter2", "X(Internal hunter2hunter2hunter2", "X-Internal a hunter2hunter2hunter2", "X-Internal {env.SHORT}", "X-Internal {env.OTHER}"} {
		got, err := read(t, edge.HandlerTable, "exempt_header", configured)
		if err == nil {
			_, err = got.Exempt.Compile(expand)
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.HasPrefix(err.Error(), "exempt_header: ") {
			t.Errorf("%s: %v", configured, err)
		}
	}
}
