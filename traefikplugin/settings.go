package traefikplugin

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// namedZone is the settings of a zone and the beginning of its fields' names in errors.
type namedZone struct {
	path string
	zone Zone
}

// zones returns all limits of a configuration. The limit at the top is the first.
func (c *Config) zones() []namedZone {
	var all []namedZone
	top := c.Zone
	top.Audit = "" // it is also for the zones and the policy
	top.Other = nil
	if len(c.Zones) == 0 && c.Policy == nil || !reflect.ValueOf(top).IsZero() {
		all = append(all, namedZone{"", top})
	}
	for i := range c.Zones {
		all = append(all, namedZone{"zones[" + strconv.Itoa(i) + "].", c.Zones[i]})
	}
	return all
}

// compiled is a configuration that was checked, but for its databases.
type compiled struct {
	site    *edge.Site
	headers edge.HeaderPolicy
	forward bool // the upstream is told what the policy says
}

// compile checks the configuration.
func (c *Config) compile() (*compiled, error) {
	addresses, err := newAddresses(c.IPStrategy)
	if err != nil {
		return nil, err
	}
	site := &edge.Site{Address: func(r *http.Request) (netip.Addr, bool) { return addressOf(addresses, r) }}
	made := &compiled{site: site}
	if c.Policy != nil {
		if err := c.readPolicy(made, addresses); err != nil {
			return nil, err
		}
	}
	all := c.zones()
	if len(c.Zones) > 0 && len(all) > len(c.Zones) && c.Limit == "" && c.Limits == "" {
		return nil, edge.LimitMissing(c.Prefix, c.Key)
	}
	for i := range all {
		if err := c.add(site, &all[i].zone, addresses); err != nil {
			return nil, named(all[i].path, err)
		}
	}
	if at, err := edge.CheckRows(site.Zones); err != nil {
		return nil, named(all[at].path, err)
	}
	var read edge.Settings
	if err := edge.Read(edge.HandlerTable, reflect.ValueOf(c), &read); err != nil {
		return nil, named("", err)
	}
	if site.Exempt, err = read.Exempt.Compile(secretText); err != nil {
		return nil, named("", err)
	}
	site.Decider.Timeout = read.Timeout
	site.Decider.OnError = read.OnError
	site.Decider.Share = read.LocalShare
	site.Fields = read.Fields
	made.headers = read.Headers
	return made, nil
}

// add compiles a limit. Errors have the names of package edge.
func (c *Config) add(site *edge.Site, settings *Zone, a *addresses) error {
	if settings.IPv6Prefix == "" && c.IPStrategy != nil && c.IPStrategy.IPv6Subnet != nil {
		settings.IPv6Prefix = strconv.Itoa(*c.IPStrategy.IPv6Subnet)
	}
	z, err := edge.NewZone(reflect.ValueOf(settings), a.parseText)
	if err != nil {
		return err
	}
	z.Source = fromSeveral
	if t := z.Key.(*template); z.Plain() && len(t.pieces) == 1 {
		z.Source = t.pieces[0].from
		z.Name = t.pieces[0].text
	}
	if settings.Match != nil {
		m, err := settings.Match.Compile()
		if err != nil {
			return err
		}
		z.Match = func(r *http.Request) (bool, error) { return m.Matches(r), nil }
	}
	return site.Add(z)
}

// secretText is what {env.NAME} or {file.PATH} gives, the placeholders of Caddy for secrets.
func secretText(text string) (string, error) {
	name := strings.TrimSuffix(text, "}")
	if path := strings.TrimPrefix(name, "{file."); path != name {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		return strings.TrimSpace(string(content)), nil
	}
	variable := strings.TrimPrefix(name, "{env.")
	if variable == name || os.Getenv(variable) == "" {
		return "", errors.New("only {env.NAME} and {file.PATH} can give it, and not empty")
	}
	return os.Getenv(variable), nil
}

// store reads where limits are counted.
func (c *Config) store() (edge.StoreSettings, error) {
	dsn, err := dsnOf(c.DSN, c.DSNFile)
	if err != nil {
		return edge.StoreSettings{}, err
	}
	return c.storeAt(dsn)
}

// storeAt reads how the database of a DSN is used.
func (c *Config) storeAt(dsn string) (edge.StoreSettings, error) {
	var read edge.Settings
	if err := edge.Read(edge.StoreTable, reflect.ValueOf(c), &read); err != nil {
		return edge.StoreSettings{}, named("", err)
	}
	s := read.Store
	if s.Region == "" && len(c.History) > 0 {
		s.Region = c.History[0].Region
	}
	s.DSN = dsn
	s, err := s.Resolve("here, in a file that dsnFile names,")
	return s, named("", err)
}

// otherStore reads the database of a policy or a history, which is that of the limits if dsn and file are "".
func (c *Config) otherStore(path, dsn, file string, limits edge.StoreSettings) (edge.StoreSettings, error) {
	dsn, err := dsnOf(dsn, file)
	if err != nil {
		return limits, named(path, err)
	}
	if dsn == "" || dsn == limits.DSN {
		return limits, nil
	}
	return c.storeAt(dsn)
}

// dsnOf is a configured DSN, or that in the configured file.
func dsnOf(configured, file string) (string, error) {
	if file == "" {
		return configured, nil
	}
	if configured != "" {
		return "", &ratelimit.FieldError{Field: "dsnFile", Value: file, Want: "left out: dsn is given"}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", &ratelimit.FieldError{Field: "dsnFile", Value: file, Want: "a file that Traefik can read: " + err.Error()}
	}
	dsn := strings.TrimSpace(string(text))
	if dsn == "" {
		return "", &ratelimit.FieldError{Field: "dsnFile", Value: file, Want: "a file with " + edge.WantDSN + ": it is empty"}
	}
	return dsn, nil
}

// named returns an error of package edge with the name that its field has in Config: path,
// and the name in camel case.
func named(path string, err error) error {
	field, ok := err.(*ratelimit.FieldError)
	if !ok {
		return err
	}
	return &ratelimit.FieldError{Field: path + camelCase(field.Field), Value: field.Value, Want: field.Want}
}

// camelCase turns on_error into onError. It does not change the name of an environment
// variable.
func camelCase(name string) string {
	parts := strings.Split(name, "_")
	text := parts[0]
	for _, part := range parts[1:] {
		if part == strings.ToUpper(part) {
			text += "_" + part
		} else {
			text += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return text
}

// checkOne checks the length of a list that stands for one map, see Config.
func checkOne(field string, n int) error {
	if n > 1 {
		return &ratelimit.FieldError{Field: field, Value: strconv.Itoa(n) + " of them", Want: "one map"}
	}
	return nil
}
