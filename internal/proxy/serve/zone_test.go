package serve_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// same is a placeholder with one value for all requests.
type same string

func (s same) Value(*reading.Input) string { return string(s) }

// parse returns a text that is used as it is.
func parse(_, configured string) (*reading.Text, error) {
	t := &reading.Text{}
	if strings.Contains(configured, "{") {
		t.AddCustom(configured, same(configured), reading.Parts{})
	} else {
		t.AddText(configured)
	}
	return t, nil
}

// compile compiles a configuration with zones.
func compile(handler settings.Values, zones ...settings.Values) (*serve.Site, error) {
	c := serve.Configuration{Handler: handler, Zones: zones}
	c.Parse = parse
	return c.Compile()
}

// Two zones with the same prefix and the same durability must have keys that cannot be equal, because their
// limits would otherwise share rows.
func TestLimitsOnOneRowAreRejected(t *testing.T) {
	zone := func(prefix, key, durable string) settings.Values {
		return settings.Values{"prefix": prefix, "limit": "1 1h", "key": key, "durable": durable}
	}
	const shared = `zone "a": prefix: "a": must be `
	for _, test := range []struct {
		third settings.Values
		want  string
	}{
		{third: zone("a", "k", ""), want: shared},
		{third: zone("a", "other", ""), want: "<nil>"},
		{third: zone("a", "", ""), want: shared}, // the default is a placeholder, which may have any value
		{third: zone("a", "{x} | k", ""), want: shared},
		{third: zone("b", "", ""), want: "<nil>"},
		{third: zone("a", "", "on"), want: "<nil>"},
	} {
		_, err := compile(nil, zone("z", "", ""), zone("a", "k", ""), test.third)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v: error %s, want %s", test.third, got, test.want)
		}
	}
}

// The addresses and networks of exempt are exempt, and no others. An unknown address is not exempt, and
// neither is an address that is assumed, because the proxy could not determine the client's. A word that does
// not parse as a network is an error that names the word.
func TestNetworksAreExempt(t *testing.T) {
	networks := "10.0.0.0/8 192.0.2.7 2001:db8::1/32 ::ffff:192.0.2.8"
	zone := settings.Values{"prefix": "a", "limit": "1 1h"}
	site, err := compile(settings.Values{"exempt": networks}, zone)
	if err != nil {
		t.Fatal(err)
	}
	site.Prepare()
	isExempt := func(address netip.Addr, assumed bool) bool {
		site.Clients.Address = func(*http.Request) (netip.Addr, bool) { return address, assumed }
		q := newRequest(site, &http.Request{})
		waits, err := serve.FindLimits(q)
		if err != nil {
			t.Fatal(err)
		}
		return !waits
	}
	for address, want := range map[string]bool{
		"10.1.2.3": true, "11.1.2.3": false, "192.0.2.7": true, "192.0.2.8": true, "192.0.2.9": false,
		"2001:db8:1::": true, "2001:db9::": false, "fe80::1": false, "64:ff9b::c000:207": false,
	} {
		if got := isExempt(netip.MustParseAddr(address), false); got != want {
			t.Errorf("%s is exempt: %v, want %v", address, got, want)
		}
	}
	if isExempt(netip.Addr{}, false) || isExempt(netip.MustParseAddr("10.1.2.3"), true) {
		t.Error("an unknown or an assumed address is exempt, want neither")
	}
	for _, word := range []string{"10.0.0.0/33", "everybody", "fe80::1%eth0"} {
		_, err := compile(settings.Values{"exempt": "10.0.0.1 " + word}, zone)
		want := fmt.Sprintf("exempt: %q: must be ", word)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) {
			t.Errorf("exempt 10.0.0.1 %s: error %s, want %s", word, got, want)
		}
	}
}
