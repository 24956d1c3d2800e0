package traefikplugin

import (
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Config is the middleware's part of Traefik's dynamic configuration. Traefik
// matches names without regard to case, turns text into numbers and booleans,
// and drops what it does not know without a word.
type Config struct {
	// DSN is the database: a postgres:// URL, or keyword=value pairs. "memory"
	// counts in this process. Default: the environment variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// MaxConns bounds the connections to the database, from 1 to 1000. Default:
	// the DSN's pool_max_conns, or 8.
	MaxConns int `json:"maxConns,omitempty"`

	// AutoMigrate creates or upgrades the two tables on first use, unless the
	// environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE is true. Default true.
	AutoMigrate bool `json:"autoMigrate"`

	// CleanupProbability is how likely a statement is followed by the deletion
	// of expired rows, from 0 to 1; 0 is never. Default 0.1.
	CleanupProbability float64 `json:"cleanupProbability"`

	// InMemoryBlock refuses without asking the database while it is known what
	// it would say: a key whose quota is used up stays so until it is due to
	// come back. Only a quota that another process gives back is noticed up to
	// a second late. Default true.
	InMemoryBlock bool `json:"inMemoryBlock"`

	// MaxBlockedKeys bounds the used-up keys that are remembered for it, from 1
	// to 10000000. Default 10000.
	MaxBlockedKeys int `json:"maxBlockedKeys,omitempty"`

	// Prefix is the limit's namespace. Required unless there are zones.
	Prefix string `json:"prefix,omitempty"`

	// Key is whose quota a request counts against: text with the placeholders
	// {client_ip} {remote_ip} {host} {method} {path} {header.NAME}
	// {cookie.NAME} {query.NAME}. Default {client_ip}.
	Key string `json:"key,omitempty"`

	// Algorithm is how hits are counted. Default sliding_window.
	Algorithm string `json:"algorithm,omitempty"`

	// Limit is events and window, such as "100 1m" or "100/1m". Required unless
	// there are zones.
	Limit string `json:"limit,omitempty"`

	// Burst is a bucket's capacity, where the algorithm has one. Default: the
	// limit's events.
	Burst string `json:"burst,omitempty"`

	// Cost is how much a request counts: a whole number, or text with
	// placeholders that gives one. Default 1.
	Cost string `json:"cost,omitempty"`

	// Durable counts in the table that survives a crash of the server.
	Durable bool `json:"durable,omitempty"`

	// SynchronousCommit waits until a decision on a durable limit is on disk.
	SynchronousCommit bool `json:"synchronousCommit,omitempty"`

	// HashKey stores the key as a SHA-256 digest. Default: true where the key
	// holds a cookie, a header that carries a credential, or a query parameter
	// with a name like token, secret or password; else false. Proxies that are to
	// share counters must agree on it.
	HashKey string `json:"hashKey,omitempty"`

	// Zones are further limits on the same request: it passes only if all have
	// room, and is charged to all or to none.
	Zones []Zone `json:"zones,omitempty"`

	// Timeout is for the whole decision on a request. Default 250ms.
	Timeout string `json:"timeout,omitempty"`

	// OnError is what happens where no decision comes in time: allow or deny
	// (503). Default allow.
	OnError string `json:"onError,omitempty"`

	// IPStrategy says what {client_ip} is, as in Traefik's own sourceCriterion.
	// Default: the address of the connection.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
}

// Zone is one limit. Its fields are Config's of the same names.
type Zone struct {
	Prefix            string `json:"prefix,omitempty"`
	Key               string `json:"key,omitempty"`
	Algorithm         string `json:"algorithm,omitempty"`
	Limit             string `json:"limit,omitempty"`
	Burst             string `json:"burst,omitempty"`
	Cost              string `json:"cost,omitempty"`
	Durable           bool   `json:"durable,omitempty"`
	SynchronousCommit bool   `json:"synchronousCommit,omitempty"`
	HashKey           string `json:"hashKey,omitempty"`
}

// IPStrategy chooses an address from X-Forwarded-For as Traefik's does.
type IPStrategy struct {
	// Depth takes the address at this place, counted from the right.
	Depth int `json:"depth,omitempty"`

	// ExcludedIPs takes the first address from the right that is not in these
	// addresses and networks. Depth comes first.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`

	// IPv6Subnet counts IPv6 addresses of one network of so many bits as one,
	// except where ExcludedIPs decides.
	IPv6Subnet *int `json:"ipv6Subnet,omitempty"`
}

// CreateConfig returns the defaults.
func CreateConfig() *Config {
	return &Config{AutoMigrate: true, CleanupProbability: 0.1, InMemoryBlock: true}
}

// zones are all of a configuration's limits, the one at its top first.
func (c *Config) zones() []zoneAt {
	var all []zoneAt
	top := Zone{c.Prefix, c.Key, c.Algorithm, c.Limit, c.Burst, c.Cost, c.Durable, c.SynchronousCommit, c.HashKey}
	if len(c.Zones) == 0 || top != (Zone{}) {
		all = append(all, zoneAt{"", top})
	}
	for i := range c.Zones {
		all = append(all, zoneAt{"zones[" + strconv.Itoa(i) + "].", c.Zones[i]})
	}
	return all
}

// zoneAt is a zone and how the names of its fields begin.
type zoneAt struct {
	path string
	zone Zone
}

// read checks a zone and works out what need not be done for each request.
func (z *zoneAt) read() (*rule, error) {
	c := &z.zone
	limit, err := edge.ParseLimit(edge.Config{
		Prefix: c.Prefix, Algorithm: c.Algorithm, Limit: c.Limit, Burst: c.Burst,
		Durable: c.Durable, SynchronousCommit: c.SynchronousCommit,
	})
	if err != nil {
		return nil, errors.New(z.path + err.Error())
	}
	key := c.Key
	if key == "" {
		key = defaultKey
	}
	r := &rule{limit: limit}
	if r.key, err = parseTemplate(z.path+"key", key); err != nil {
		return nil, err
	}
	if r.cost, err = edge.ParseCost(c.Cost); err != nil {
		return nil, errors.New(z.path + err.Error())
	}
	if r.cost == 0 {
		if r.costText, err = parseTemplate(z.path+"cost", c.Cost); err != nil {
			return nil, err
		}
	}
	r.secret = r.key.secret()
	if c.HashKey != "" {
		if r.secret, err = strconv.ParseBool(c.HashKey); err != nil {
			return nil, &ratelimit.FieldError{Field: z.path + "hashKey", Value: c.HashKey, Want: "true or false"}
		}
	}
	return r, nil
}

// rules reads all zones of a configuration.
func (c *Config) rules() ([]*rule, error) {
	var rules []*rule
	for _, z := range c.zones() {
		zone := z
		r, err := zone.read()
		if err != nil {
			return nil, err
		}
		for _, before := range rules {
			if mayMeet(before, r) {
				return nil, &ratelimit.FieldError{Field: zone.path + "prefix", Value: r.limit.Prefix, Want: wantOwnRow}
			}
		}
		rules = append(rules, r)
	}
	return rules, nil
}

const wantOwnRow = "another name: an earlier limit of this middleware counts under it in the same table, where the two keys could be the same"

// mayMeet reports whether the hits of one request on two limits can be on the
// same row, which must not be. What a placeholder gives is often for the client
// to choose.
func mayMeet(a, b *rule) bool {
	if a.limit.Prefix != b.limit.Prefix || a.limit.Durable != b.limit.Durable {
		return false
	}
	return !a.key.fixed() || !b.key.fixed() || expand(a.key, nil, nil) == expand(b.key, nil, nil)
}

// gate reads what happens where no decision comes in time.
func (c *Config) gate() (timeout time.Duration, onError edge.OnError, err error) {
	if c.Timeout != "" {
		timeout, err = time.ParseDuration(c.Timeout)
		if err != nil || timeout == 0 {
			return 0, "", &ratelimit.FieldError{Field: "timeout", Value: c.Timeout, Want: "a duration from 1ms to 1m, such as 250ms"}
		}
	}
	if timeout, err = edge.CheckTimeout(timeout); err != nil {
		return 0, "", err
	}
	onError, err = edge.ParseOnError(c.OnError)
	if err != nil {
		return 0, "", &ratelimit.FieldError{Field: "onError", Value: c.OnError, Want: "allow or deny"}
	}
	return timeout, onError, nil
}

// migrationSwitch is the environment variable that the npm library has, too.
const migrationSwitch = "PG_RATELIMIT_DISABLE_AUTO_MIGRATE"

// database reads where the limits are counted.
func (c *Config) database() (poolKey, error) {
	if c.MaxConns < 0 || c.MaxConns > maxMaxConns {
		return poolKey{}, &ratelimit.FieldError{Field: "maxConns", Value: strconv.Itoa(c.MaxConns), Want: "a whole number from 1 to " + strconv.Itoa(maxMaxConns)}
	}
	if c.CleanupProbability < 0 || c.CleanupProbability > 1 || c.CleanupProbability != c.CleanupProbability {
		return poolKey{}, &ratelimit.FieldError{Field: "cleanupProbability", Value: strconv.FormatFloat(c.CleanupProbability, 'g', -1, 64), Want: "a number from 0 to 1"}
	}
	if c.MaxBlockedKeys < 0 || c.MaxBlockedKeys > maxBlockedKeys {
		return poolKey{}, &ratelimit.FieldError{Field: "maxBlockedKeys", Value: strconv.Itoa(c.MaxBlockedKeys), Want: "a whole number from 1 to " + strconv.Itoa(maxBlockedKeys)}
	}
	disabled := false
	if text := os.Getenv(migrationSwitch); text != "" {
		var err error
		if disabled, err = strconv.ParseBool(text); err != nil {
			return poolKey{}, &ratelimit.FieldError{Field: "environment variable " + migrationSwitch, Value: text, Want: "true or false"}
		}
	}
	dsn := c.DSN
	if dsn == "" {
		dsn = os.Getenv("DATABASE_URL")
	}
	switch dsn {
	case "":
		return poolKey{}, &ratelimit.FieldError{Field: "dsn", Want: "a Postgres URL or key=value pairs, or memory: here, or in the environment variable DATABASE_URL"}
	case memoryDSN:
		return poolKey{dsn: memoryDSN}, nil
	}
	k := poolKey{dsn: dsn, maxConns: c.MaxConns, migrate: c.AutoMigrate && !disabled, cleanup: c.CleanupProbability, blocked: c.MaxBlockedKeys}
	if !c.InMemoryBlock {
		k.blocked = -1 // as ratelimit.PostgresOptions has it
	}
	return k, nil
}

// maxBlockedKeys is a gigabyte's worth or so.
const maxBlockedKeys = 10000000

// maxMaxConns is far beyond what one proxy can use.
const maxMaxConns = 1000
