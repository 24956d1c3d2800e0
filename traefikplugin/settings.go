package traefikplugin

import (
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// zone is a limit of a configuration that was compiled.
type zone struct {
	limit    *ratelimit.Limit
	key      template
	cost     int64    // 0 if costText gives it
	costText template // nil if cost is fixed
	minCost  int64    // the least that costText gives
	settle   *policy.Settle
	secret   bool
	hashed   bool // secret, and not by default
	ipv4     int  // how many bits of an address count
	ipv6     int
	ban      *policy.BanAfter // nil if refusals lead to none
	mode     policy.Mode
	match    *edge.Matcher // nil for all requests
	wait     *edge.Wait    // nil if refused requests do not wait

	byValue      map[string]*ratelimit.Limit // by the text of by; nil if there is one limit for all requests
	by           template
	alternatives []alternative // of the key; nil without
}

// alternative is one of several keys, of which the first that is not empty is that of a request.
type alternative struct {
	text   template
	secret bool
}

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
	if len(c.Zones) == 0 && c.Policy == nil || top != (Zone{}) {
		all = append(all, namedZone{"", top})
	}
	for i := range c.Zones {
		all = append(all, namedZone{"zones[" + strconv.Itoa(i) + "].", c.Zones[i]})
	}
	return all
}

// compile checks all limits of a configuration.
func (c *Config) compile() ([]*zone, error) {
	var zones []*zone
	var rows []edge.LimitRows
	all := c.zones()
	if len(c.Zones) > 0 && len(all) > len(c.Zones) && c.Limit == "" && c.Limits == "" {
		return nil, edge.LimitMissing(c.Prefix, c.Key)
	}
	for i := range all {
		z, err := all[i].compile(c.IPStrategy)
		if err == nil {
			err = c.checkBesidePolicy(&all[i].zone, z)
		}
		if err != nil {
			return nil, named(all[i].path, err)
		}
		row := edge.LimitRows{Limit: z.limit, Fixed: z.alternatives == nil && z.key.fixed()}
		if row.Fixed {
			row.Key = expand(z.key, nil, nil, 0, 0)
		}
		zones = append(zones, z)
		rows = append(rows, row)
	}
	if at, err := edge.CheckRows(rows); err != nil {
		return nil, named(all[at].path, err)
	}
	return zones, nil
}

// compile checks a zone. Errors have the names of package edge.
func (z *namedZone) compile(s *IPStrategy) (*zone, error) {
	settings := z.zone
	if settings.IPv6Prefix == "" && s != nil && s.IPv6Subnet != nil {
		settings.IPv6Prefix = strconv.Itoa(*s.IPv6Subnet)
	}
	read, err := edge.ReadLimit(reflect.ValueOf(settings))
	if err != nil {
		return nil, err
	}
	r := &zone{limit: &read.Limit, cost: read.Cost, minCost: read.MinCost, settle: read.Settle, ipv4: read.IPv4, ipv6: read.IPv6, ban: read.Ban, mode: read.Mode, wait: read.Wait}
	key := settings.Key
	if key == "" {
		key = defaultKey
	}
	if r.key, err = parseTemplate("key", key); err != nil {
		return nil, err
	}
	for _, text := range read.Alternatives {
		one, err := parseTemplate("key", text)
		if err != nil {
			return nil, err
		}
		secret := one.secret()
		if read.HashKey != nil {
			secret = *read.HashKey
		}
		r.alternatives = append(r.alternatives, alternative{one, secret})
	}
	if r.cost == 0 {
		if r.costText, err = parseTemplate("cost", settings.Cost); err != nil {
			return nil, err
		}
	}
	if r.by, err = parseTemplate("limits", read.By); err != nil {
		return nil, err
	}
	r.byValue = read.ByValue
	if settings.Match != nil {
		if r.match, err = settings.Match.Compile(); err != nil {
			return nil, err
		}
	}
	r.secret = r.key.secret()
	if read.HashKey != nil {
		r.secret = *read.HashKey
		r.hashed = r.secret
	}
	return r, nil
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
