package pgwire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// config holds the validated parameters of a connection string, the environment and the defaults. It does not
// change after parseConfig.
type config struct {
	targets        []target
	user           string
	password       string // "" means the password in passfile
	dbname         string // "" means the database named like the user
	passfile       string
	settings       map[string]string // settings of the session, for the startup message
	tls            tlsSettings
	binding        string        // channel_binding
	session        string        // target_session_attrs
	attemptTimeout time.Duration // for one attempt to connect; 0 means the default
	maxConns       int           // the parameters of pgx's pool
	maxLifetime    time.Duration
	idleTimeout    time.Duration
	log            func(string)
}

// target is one host of the connection string.
type target struct {
	host string // a name, an address, or the folder of a Unix socket
	port string
}

// unix reports whether the target is a socket in the file system.
func (t target) unix() bool {
	return strings.HasPrefix(t.host, "/")
}

// String formats the target for errors.
func (t target) String() string {
	if t.unix() {
		return t.host + "/.s.PGSQL." + t.port
	}
	return net.JoinHostPort(t.host, t.port)
}

// variable returns the name of the environment variable that replaces a missing parameter.
func variable(parameter string) string {
	switch parameter {
	case "dbname":
		return "PGDATABASE"
	case "application_name":
		return "PGAPPNAME"
	case "connect_timeout":
		return "PGCONNECT_TIMEOUT"
	}
	return "PG" + strings.ToUpper(strings.ReplaceAll(parameter, "_", ""))
}

// ignored lists the parameters of pgx that have no effect in this client, by prefixes of their names.
var ignored = []string{"sslpassword", "pool_", "min_read_buffer_size", "description_cache_capacity",
	"statement_cache_capacity", "statement_cache_mode", "default_query_exec_mode"}

// parameters holds the parameters of a connection string that have not been taken yet. The parameters that
// are never taken become settings of the session.
type parameters struct {
	values map[string]string
	err    error // for the first invalid parameter; it quotes no value, which may hold a password
}

// remove removes a parameter and returns its value. The environment replaces a missing parameter, but not a
// parameter with an empty value.
func (p *parameters) remove(name string) string {
	value, ok := p.values[name]
	delete(p.values, name)
	if ok {
		return value
	}
	return os.Getenv(variable(name))
}

// fail records that a parameter is invalid, unless an earlier parameter was invalid.
func (p *parameters) fail(name, want string) {
	if p.err == nil {
		p.err = errors.New(name + " must be " + want)
	}
}

// oneOf takes a parameter that must be one of words. A missing parameter has the first word as its value.
func (p *parameters) oneOf(name string, words ...string) string {
	value := p.remove(name)
	if value == "" {
		return words[0]
	}
	for _, word := range words {
		if value == word {
			return value
		}
	}
	p.fail(name, "one of "+strings.Join(words, ", "))
	return ""
}

// number takes a parameter that must be a whole number of at least minimum. The result is fallback if the
// parameter is missing.
func (p *parameters) number(name string, minimum, fallback int) int {
	value := p.remove(name)
	if value == "" {
		return fallback
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < minimum || n > 1<<31-1 {
		p.fail(name, "a whole number from "+strconv.Itoa(minimum))
	}
	return n
}

// duration takes a parameter that must be a Go duration. The result is fallback if the parameter is
// missing.
func (p *parameters) duration(name string, fallback time.Duration) time.Duration {
	value := p.remove(name)
	if value == "" {
		return fallback
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		p.fail(name, "a duration above zero, such as 30m")
	}
	return d
}

// parseConfig parses and validates a connection string. It reads certificates and keys to report their errors
// early.
func parseConfig(dsn string, log func(string)) (*config, error) {
	values, err := pg.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	p := &parameters{values: values}
	for i := range pg.Permitted {
		name := pg.Permitted[i].Name
		if _, ok := values[name]; !ok {
			if err := pg.Permitted[i].Check(os.Getenv(variable(name))); err != nil {
				return nil, err
			}
		}
	}
	if err := pg.CheckPassfile(values); err != nil {
		return nil, err
	}
	c := &config{
		log: log, targets: p.targets(), tls: p.tls(),
		user: p.remove("user"), password: p.remove("password"), dbname: p.remove("dbname"),
		passfile:       p.remove("passfile"),
		session:        p.remove("target_session_attrs"), // pg.Permitted has the values
		binding:        p.oneOf("channel_binding", "prefer", "disable", "require"),
		attemptTimeout: time.Duration(p.number("connect_timeout", 0, 0)) * time.Second,
		maxConns:       p.number("pool_max_conns", 1, 8),
		maxLifetime:    p.duration("pool_max_conn_lifetime", time.Hour),
		idleTimeout:    p.duration("pool_max_conn_idle_time", 5*time.Minute),
		settings:       p.sessionSettings(),
	}
	if c.user == "" {
		if account, err := user.Current(); err == nil {
			c.user = account.Username
		}
	}
	if c.user == "" {
		p.fail("user", "given: the operating system has no name for the account")
	}
	if home := os.Getenv("HOME"); home != "" && c.passfile == "" {
		c.passfile = home + "/.pgpass"
	}
	if p.err != nil {
		return nil, p.err
	}
	for _, t := range c.targets {
		if !t.unix() { // sockets of the file system have no TLS
			_, err = c.tls.config("")
			return c, err
		}
	}
	return c, nil
}

// targets combines hosts and ports into targets.
func (p *parameters) targets() []target {
	hosts, ports := strings.Split(p.remove("host"), ","), strings.Split(p.remove("port"), ",")
	if len(ports) > 1 && len(ports) != len(hosts) {
		p.fail("port", fmt.Sprintf("one port, or %d, as many as there are hosts", len(hosts)))
	}
	var targets []target
	for i, host := range hosts {
		t := target{host: host, port: ports[i%len(ports)]}
		if t.host == "" {
			t.host = defaultHost()
		}
		if t.port == "" {
			t.port = "5432"
		}
		n, err := strconv.Atoi(t.port)
		if err != nil || n < 1 || n > 65535 {
			p.fail("port", "a number from 1 to 65535")
		}
		t.port = strconv.Itoa(n)
		targets = append(targets, t)
	}
	return targets
}

// defaultHost returns the folder of the local server's socket, or localhost if there is none.
func defaultHost() string {
	for _, folder := range []string{"/var/run/postgresql", "/private/tmp", "/tmp"} {
		if _, err := os.Stat(folder); err == nil {
			return folder
		}
	}
	return "localhost"
}

// sessionSettings removes and returns the remaining parameters, which are settings of the session.
func (p *parameters) sessionSettings() map[string]string {
	settings := map[string]string{}
	for _, name := range []string{"application_name", "options"} {
		if value := p.remove(name); value != "" {
			settings[name] = value
		}
	}
	for name, value := range p.values {
		isSetting := true
		for _, start := range ignored {
			isSetting = isSetting && !strings.HasPrefix(name, start)
		}
		if isSetting {
			settings[name] = value
		}
	}
	return settings
}

// startup returns the StartupMessage.
func (c *config) startup() []byte {
	b := []byte("\x00\x00\x00\x00\x00\x03\x00\x00user\x00" + c.user + "\x00client_encoding\x00UTF8\x00")
	if c.dbname != "" {
		b = append(b, "database\x00"+c.dbname+"\x00"...)
	}
	for name, value := range c.settings {
		b = append(b, name+"\x00"+value+"\x00"...)
	}
	b = append(b, 0)
	putLength(b, 0)
	return b
}
