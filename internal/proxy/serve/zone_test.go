package serve_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// template is a serve.Text that is used as it is.
type template string

func (t template) Of(*serve.Request) string            { return string(t) }
func (t template) Key(*serve.Request, int, int) string { return string(t) }
func (t template) Parts() serve.Parts {
	return serve.Parts{Fixed: !strings.Contains(string(t), "{")}
}

// compile compiles a configuration with zones.
func compile(handler settings.Values, zones ...settings.Values) (*serve.Site, error) {
	c := serve.Configuration{Handler: handler, Zones: zones}
	c.Parse = func(_, configured string) (serve.Text, error) { return template(configured), nil }
	site, _, err := c.Compile()
	return site, err
}

// A client that chooses its cost gets no free pass.
func TestCostOfARequest(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "7": 7, "0": 1, "00": 1, "": 1, "-3": 1, "-0": 1, "2.5": 1, "many": 1,
		"4611686018427387904": 1 << 62, "18446744073709551615": 1 << 62, "99999999999999999999": 1 << 62,
	} {
		if got := serve.ParseCost(text); got != want {
			t.Errorf("ParseCost(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestLimitsOnOneRowAreRejected(t *testing.T) {
	zone := func(prefix, key, durable string) settings.Values {
		return settings.Values{"prefix": prefix, "limit": "1 1h", "key": key, "durable": durable}
	}
	for _, test := range []struct {
		other  settings.Values
		shared bool
	}{
		{zone("a", "k", ""), true},
		{zone("a", "other", ""), false},
		{zone("a", "", ""), true}, // a placeholder may have any value
		{zone("a", "{x} | k", ""), true},
		{zone("b", "", ""), false},
		{zone("a", "", "on"), false},
	} {
		_, err := compile(nil, zone("z", "", ""), zone("a", "k", ""), test.other)
		if !test.shared && err != nil {
			t.Errorf("%+v: error %v, want nil", test.other, err)
		}
		var wrong *ratelimit.FieldError
		var part *serve.PartError
		if test.shared && (!errors.As(err, &wrong) || wrong.Field != "prefix" || wrong.Value != "a" ||
			!errors.As(err, &part) || part.Zone != 2) {
			t.Errorf("%+v: error %v, want one about the prefix a of the third zone", test.other, err)
		}
	}
}

func TestNetworksAreExempt(t *testing.T) {
	networks := "10.0.0.0/8 192.0.2.7 2001:db8::1/32 ::ffff:192.0.2.8"
	site, err := compile(settings.Values{"exempt": networks}, settings.Values{"prefix": "a", "limit": "1 1h"})
	if err != nil {
		t.Fatal(err)
	}
	site.Prepare()
	isExempt := func(address netip.Addr, assumed bool) bool {
		site.Address = func(*http.Request) (netip.Addr, bool) { return address, assumed }
		q := &serve.Request{HTTP: &http.Request{}, Site: site}
		waits, err := serve.Begin(q)
		if err != nil {
			t.Fatal(err)
		}
		return !waits
	}
	for address, want := range map[string]bool{
		"10.1.2.3": true, "11.1.2.3": false, "192.0.2.7": true, "192.0.2.8": true, "192.0.2.9": false,
		"2001:db8:1::": true, "2001:db9::": false, "fe80::1": false,
	} {
		if got := isExempt(netip.MustParseAddr(address), false); got != want {
			t.Errorf("%s is exempt: %v, want %v", address, got, want)
		}
	}
	if isExempt(netip.Addr{}, false) || isExempt(netip.MustParseAddr("10.1.2.3"), true) {
		t.Error("an unknown or an assumed address is exempt, want neither")
	}
	for text, word := range map[string]string{
		"10.0.0.0/33": "10.0.0.0/33", "10.0.0.1 everybody": "everybody", "fe80::1%eth0": "fe80::1%eth0",
	} {
		_, err := compile(settings.Values{"exempt": text}, settings.Values{"prefix": "a", "limit": "1 1h"})
		var wrong *ratelimit.FieldError
		if !errors.As(err, &wrong) || wrong.Field != "exempt" || wrong.Value != word {
			t.Errorf("exempt %q: error %v, want one about %q", text, err, word)
		}
	}
}
