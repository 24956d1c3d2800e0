package traefikplugin

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// compiledConfig is a validated configuration. Its DSNs are not validated yet.
type compiledConfig struct {
	site  *serve.Site
	grace time.Duration // see readGrace

	// values has the settings of the middleware, its limit and its store. policy and history are nil if the
	// configuration has none.
	values, policy, history settings.Values

	store    settings.Connection
	dsns     *serve.DSNs
	recorded *settings.History // the settings of the history, or nil
}

// compile validates the configuration.
func (c *Config) compile() (*compiledConfig, error) {
	a, err := newAddresses(c.IPStrategy)
	r := &reader{err: err}
	compiled := &compiledConfig{values: r.values("", c.Other, "history ipStrategy match policy zones",
		settings.LimitTable, settings.HandlerTable, settings.ConnectionTable, dsnFile,
		graceTimeOut)}
	if part := r.part("", c.Other, "policy"); part != nil {
		compiled.policy = r.values("policy.", part, "", settings.PolicyTable, dsnFile, forwardHeaders)
	}
	compiled.grace = r.readGrace(compiled.values["grace_time_out"])
	forwards, err := settings.ParseSwitch("forward_headers", compiled.policy["forward_headers"])
	r.fail("policy.", err)
	c.readHistory(r, compiled)
	configuration := &serve.Configuration{Handler: compiled.values, Matches: c.Match != nil,
		Policy: compiled.policy, Parse: a.parseText}
	if c.IPStrategy != nil && c.IPStrategy.IPv6Subnet != nil {
		configuration.IPv6Prefix = strconv.Itoa(*c.IPStrategy.IPv6Subnet)
	}
	for i := range c.Zones {
		configuration.Zones = append(configuration.Zones,
			r.values(pathOf(i), c.Zones[i].Other, "match", settings.LimitTable, settings.ZoneTable))
	}
	if r.err != nil {
		return nil, r.err
	}
	site, err := configuration.Compile()
	if err != nil {
		return nil, nameError("", err)
	}
	site.Clients.Address = a.address
	site.Forwards = forwards
	compiled.site = site
	read := &settings.Settings{}
	r.read("", settings.ConnectionTable, compiled.values, read)
	compiled.store = read.Connection
	c.setMatchers(r, site)
	return compiled, r.err
}

// pathOf returns the prefix of a zone's or a part's settings in errors; see serve.PartError.
func pathOf(zone int) string {
	switch zone {
	case serve.PolicyPart:
		return "policy."
	case serve.HistoryPart:
		return "history."
	}
	return "zones[" + strconv.Itoa(zone) + "]."
}

// defaultGrace is Traefik's default of graceTimeOut.
const defaultGrace = 10 * time.Second

// readGrace returns how long a Traefik that stops waits for the responses of requests that it settles.
func (r *reader) readGrace(text string) time.Duration {
	if text == "" {
		return defaultGrace
	}
	grace, err := time.ParseDuration(text)
	if err != nil || grace < 0 || grace > time.Hour {
		r.invalid("graceTimeOut", text,
			"a duration from 0s to 1h, such as the graceTimeOut of the entry point")
	}
	return grace
}

// setMatchers sets Match of the zones.
func (c *Config) setMatchers(r *reader, site *serve.Site) {
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
		r.values(path+"match.", match.Other, "headers hosts methods paths")
		m, err := match.Compile()
		r.fail(path, err)
		z.Match = func(r *http.Request) (bool, error) { return m.Matches(r), nil }
		z.Endpoint = strings.Join(match.Paths, " ")
	}
}

// readHistory reads the settings of the history.
func (c *Config) readHistory(r *reader, to *compiledConfig) {
	part := r.part("", c.Other, "history")
	if part == nil {
		return
	}
	read := &settings.Settings{}
	to.recorded = &read.History
	to.history = r.values("history.", part, "retention", settings.HistoryTable, dsnFile)
	r.read("history.", settings.HistoryTable, to.history, read)
	const path = "history.retention."
	retention := r.values(path, r.part("history.", part, "retention"), "", settings.RetentionTable)
	r.read(path, settings.RetentionTable, retention, read)
}

// readDSNs returns the DSNs, including the DSNs in files.
func (c *compiledConfig) readDSNs() (*serve.DSNs, error) {
	r := &reader{}
	dsns := &serve.DSNs{Where: "here, in a file that dsnFile names,", Limits: r.dsn("", c.values),
		Policy: r.dsn("policy.", c.policy), History: r.dsn("history.", c.history)}
	return dsns, r.err
}

// dsnChanged reports whether a DSN differs from the one that dataSources read, or cannot be read.
func (c *compiledConfig) dsnChanged() bool {
	now, err := c.readDSNs()
	return err != nil || now.Limits.DSN != c.dsns.Limits.DSN || now.Policy.DSN != c.dsns.Policy.DSN ||
		now.History.DSN != c.dsns.History.DSN
}

// dataSources returns the databases of the counters, the policy and the history.
func (c *compiledConfig) dataSources() (*host.DataSources, error) {
	dsns, err := c.readDSNs()
	if err != nil {
		return nil, err
	}
	c.dsns = dsns
	sources, err := c.site.DataSources(c.store, dsns, c.values["audit"], c.recorded)
	return sources, nameError("", err)
}
