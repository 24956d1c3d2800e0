package traefikplugin

import (
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// compiled is a validated configuration. Its DSNs are not validated yet.
type compiled struct {
	site    *serve.Site
	forward bool // as in handler

	// own has the settings of the middleware, its limit and its store. policy and history are nil without
	// one.
	own, policy, history settings.Values

	store    settings.Store
	dsns     *serve.DSNs
	recorded *settings.History // nil without a history
}

// compile validates the configuration.
func (c *Config) compile() (*compiled, error) {
	made := &compiled{}
	a, err := newAddresses(c.IPStrategy)
	if err != nil {
		return nil, err
	}
	if made.own,
		err = values("", c.Other, "history ipStrategy match policy zones", settings.LimitTable,
		settings.HandlerTable, settings.StoreTable, []settings.Setting{dsnFile}); err != nil {
		return nil, err
	}
	if made.policy,
		err = readOne("policy", c.Policy, settings.PolicyTable,
		[]settings.Setting{dsnFile, forwardHeaders}); err != nil {
		return nil, err
	}
	if err := c.readHistory(made); err != nil {
		return nil, err
	}
	if made.forward,
		err = settings.ParseSwitch("forward_headers", made.policy["forward_headers"]); err != nil {
		return nil, nameError("policy.", err)
	}
	configuration := &serve.Configuration{Handler: made.own, Limit: made.own, Matches: c.Match != nil,
		Policy: made.policy,
		Parse:  a.parseText, KeyExample: "{header.X-Api-Key}", UserExample: "{header.X-Forwarded-User}"}
	if c.IPStrategy != nil && c.IPStrategy.IPv6Subnet != nil {
		configuration.IPv6Prefix = strconv.Itoa(*c.IPStrategy.IPv6Subnet)
	}
	for i := range c.Zones {
		zone, err := values(pathOf(i), c.Zones[i].Other, "match", settings.LimitTable)
		if err != nil {
			return nil, err
		}
		configuration.Zones = append(configuration.Zones, zone)
	}
	site, read, err := configuration.Compile()
	if part, ok := err.(*serve.PartError); ok {
		return nil, nameError(pathOf(part.Zone), part.Err)
	}
	if err != nil {
		return nil, nameError("", err)
	}
	site.Address = func(r *http.Request) (netip.Addr, bool) { return addressOf(a, r) }
	made.site = site
	if err := settings.Read(settings.StoreTable, made.own, read); err != nil {
		return nil, nameError("", err)
	}
	made.store = read.Store
	return made, c.setMatchers(site)
}

// pathOf returns the prefix of names of settings in errors, for a zone or a part; see serve.PartError.
func pathOf(zone int) string {
	switch zone {
	case serve.PolicyPart:
		return "policy."
	case serve.HistoryPart:
		return "history."
	}
	return "zones[" + strconv.Itoa(zone) + "]."
}

// setMatchers sets Match of the zones.
func (c *Config) setMatchers(site *serve.Site) error {
	own := len(site.Zones) - len(c.Zones)
	for i, z := range site.Zones {
		path := ""
		match := c.Match
		if i >= own {
			path = pathOf(i - own)
			match = c.Zones[i-own].Match
		}
		if match == nil {
			continue
		}
		if _, err := values(path+"match.", match.Other, "headers hosts methods paths"); err != nil {
			return err
		}
		m, err := match.Compile()
		if err != nil {
			return nameError(path, err)
		}
		z.Match = func(r *http.Request) (bool, error) { return m.Matches(r), nil }
		z.Endpoint = strings.Join(match.Paths, " ")
	}
	return nil
}

// readDSNs returns the DSNs, and reads those in files.
func (c *compiled) readDSNs() (*serve.DSNs, error) {
	var err error
	dsns := &serve.DSNs{Where: "here, in a file that dsnFile names,"}
	if dsns.Limits, err = dsnOf("", c.own); err != nil {
		return nil, err
	}
	if dsns.Policy, err = dsnOf("policy.", c.policy); err != nil {
		return nil, err
	}
	if dsns.History, err = dsnOf("history.", c.history); err != nil {
		return nil, err
	}
	return dsns, nil
}

// dsnChanged reports whether a file has another DSN than at the time of dataSources, or cannot be read.
func (c *compiled) dsnChanged() bool {
	now, err := c.readDSNs()
	return err != nil || now.Limits.DSN != c.dsns.Limits.DSN || now.Policy.DSN != c.dsns.Policy.DSN ||
		now.History.DSN != c.dsns.History.DSN
}

// dataSources returns the databases of the counters, the policy and the history.
func (c *compiled) dataSources() (*host.DataSources, error) {
	dsns, err := c.readDSNs()
	if err != nil {
		return nil, err
	}
	c.dsns = dsns
	at, err := c.site.DataSources(c.store, dsns, c.own["audit"], c.recorded)
	if part, ok := err.(*serve.PartError); ok {
		return nil, nameError(pathOf(part.Zone), part.Err)
	}
	return at, nameError("", err)
}

// dsnOf returns the DSN of a part, or the DSN in the part's file.
func dsnOf(path string, part settings.Values) (host.DSN, error) {
	configured := part["dsn"]
	d := host.DSN{DSN: configured, Password: settings.HasPassword(configured)}
	file := part["dsn_file"]
	if file == "" {
		return d, nil
	}
	if configured != "" {
		return d, &ratelimit.FieldError{Field: path + "dsnFile", Value: file, Want: "left out: dsn is given"}
	}
	var err error
	d.From = file
	d.Renew = func() (string, error) { return readDSN(path, file) }
	d.DSN, err = d.Renew()
	return d, err
}

// readDSN reads the DSN in a file. path names the setting in errors.
func readDSN(path, file string) (string, error) {
	wrong := &ratelimit.FieldError{Field: path + "dsnFile", Value: file}
	text, err := os.ReadFile(file)
	if err != nil {
		wrong.Want = "a file that Traefik can read: " + err.Error()
		return "", wrong
	}
	dsn := strings.TrimSpace(string(text))
	if dsn == "" {
		wrong.Want = "a file with " + settings.WantDSN + ": it is empty"
		return "", wrong
	}
	return dsn, nil
}

// nameError returns an error of a setting with the name that its field has in Config: path,
// and the name in camel case.
func nameError(path string, err error) error {
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

// readHistory parses the settings of the history.
func (c *Config) readHistory(to *compiled) error {
	if c.History == nil {
		return nil
	}
	var read settings.Settings
	to.recorded = &read.History
	to.history = settings.Values{}
	if err := checkOne("history", len(c.History)); err != nil || len(c.History) == 0 {
		return err
	}
	var err error
	if to.history,
		err = values("history.", c.History[0].Other, "retention", settings.HistoryTable,
		[]settings.Setting{dsnFile}); err != nil {
		return err
	}
	retention, err := readOne("history.retention", c.History[0].Retention, settings.RetentionTable)
	if err != nil {
		return err
	}
	if err := settings.Read(settings.HistoryTable, to.history, &read); err != nil {
		return nameError("history.", err)
	}
	return nameError("history.retention.", settings.Read(settings.RetentionTable, retention, &read))
}

// readOne reads the settings of a list that stands for one map, see Config. Without a list, it returns nil.
func readOne(path string, list []Settings, tables ...[]settings.Setting) (settings.Values, error) {
	if list == nil {
		return nil, nil
	}
	if err := checkOne(path, len(list)); err != nil || len(list) == 0 {
		return settings.Values{}, err
	}
	return values(path+".", list[0], "", tables...)
}

func checkOne(path string, n int) error {
	if n > 1 {
		return &ratelimit.FieldError{Field: path, Value: strconv.Itoa(n) + " of them", Want: "one map"}
	}
	return nil
}
