package pgwire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"sort"
	"strconv"
	"strings"
	"time"
)

// config is a connection string, the environment and the defaults, validated.
type config struct {
	targets  []target
	user     string
	password string // "" looks into passfile
	dbname   string // "" is the user's
	passfile string
	settings map[string]string // of the session, for the startup message
	tls      tlsSettings
	auth     authSettings
	session  string        // target_session_attrs
	attempt  time.Duration // for one attempt to connect; 0 is the default
	alive    time.Duration // between TCP keep-alive probes; 0 is Go's default, negative is none
	shuffle  bool          // load_balance_hosts=random
	unnamed  bool          // never name a prepared statement
	pool     poolSettings
	env      func(string) (string, bool)
	log      func(string)
}

// target is one host of the connection string.
type target struct {
	host string // as written: a name, an address, or the folder of a unix socket
	addr string // hostaddr: where host is, or "" to look host up
	port string
}

// unix reports whether the target is a socket in the file system.
func (t target) unix() bool {
	return strings.HasPrefix(t.host, "/")
}

// String is for errors.
func (t target) String() string {
	if t.unix() {
		return t.host + "/.s.PGSQL." + t.port
	}
	return net.JoinHostPort(t.host, t.port)
}

// poolSettings are those of pgx's pool that this one has too; 0 is not given.
type poolSettings struct {
	maxConns    int
	maxLifetime time.Duration
	idleTimeout time.Duration
}

// envNames are the environment variables that stand in for a parameter which
// the connection string does not have.
var envNames = map[string]string{
	"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER",
	"password": "PGPASSWORD", "passfile": "PGPASSFILE", "require_auth": "PGREQUIREAUTH",
	"channel_binding": "PGCHANNELBINDING", "service": "PGSERVICE", "options": "PGOPTIONS",
	"application_name": "PGAPPNAME", "sslmode": "PGSSLMODE", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
	"sslcertmode": "PGSSLCERTMODE", "sslrootcert": "PGSSLROOTCERT", "sslcrl": "PGSSLCRL", "sslcrldir": "PGSSLCRLDIR",
	"sslsni": "PGSSLSNI", "sslpassword": "PGSSLPASSWORD", "sslnegotiation": "PGSSLNEGOTIATION",
	"requirepeer": "PGREQUIREPEER", "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
	"ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION", "gssencmode": "PGGSSENCMODE",
	"connect_timeout": "PGCONNECT_TIMEOUT", "client_encoding": "PGCLIENTENCODING",
	"target_session_attrs": "PGTARGETSESSIONATTRS", "load_balance_hosts": "PGLOADBALANCEHOSTS",
	"min_protocol_version": "PGMINPROTOCOLVERSION", "datestyle": "PGDATESTYLE", "timezone": "PGTZ", "geqo": "PGGEQO",
}

// withoutEffect are known parameters that mean nothing here: they set up what
// this client never does, or fine-tune what it leaves to its defaults.
var withoutEffect = " servicefile krbsrvname krbspn gsslib gssdelegation sslcompression max_protocol_version " +
	"keepalives_interval keepalives_count tcp_user_timeout fallback_application_name " +
	"pool_min_conns pool_min_idle_conns pool_health_check_period pool_max_conn_lifetime_jitter pool_ping_timeout " +
	"description_cache_capacity " +
	"oauth_issuer oauth_client_id oauth_client_secret oauth_scope scram_client_key scram_server_key sslkeylogfile "

// parameters hands out the parameters of a connection string. What is left in
// the end are settings of the session.
type parameters struct {
	values map[string]string
	env    func(string) (string, bool)
	cagey  bool // the port may be a mislaid password
}

// take returns a parameter's value and removes it. One that is there but empty
// hides the environment's.
func (p *parameters) take(name string) string {
	value, ok := p.values[name]
	delete(p.values, name)
	if ok {
		return value
	}
	if variable, ok := envNames[name]; ok {
		value, _ = p.env(variable)
	}
	return value
}

// bad is an error about a parameter's value.
func (p *parameters) bad(name, value, want string) error {
	if strings.Contains(value, "@") || name == "port" && p.cagey {
		return fmt.Errorf("%s in the dsn must be %s", name, want)
	}
	return fmt.Errorf("%s is %q, must be %s", name, value, want)
}

// oneOf takes a parameter that must be one of words; "" is the first of them.
func (p *parameters) oneOf(name string, words ...string) (string, error) {
	value := p.take(name)
	if value == "" {
		return words[0], nil
	}
	for _, word := range words {
		if value == word {
			return value, nil
		}
	}
	return "", p.bad(name, value, "one of "+strings.Join(words, ", "))
}

// number takes a parameter that must be a whole number; "" is missing.
func (p *parameters) number(name string, least, missing int) (int, error) {
	value := p.take(name)
	if value == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > 1<<31-1 {
		return 0, p.bad(name, value, "a whole number from "+strconv.Itoa(least))
	}
	return n, nil
}

// duration takes a parameter that must be a Go duration; "" is 0.
func (p *parameters) duration(name string) (time.Duration, error) {
	value := p.take(name)
	if value == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, p.bad(name, value, "a duration above zero, such as 30m")
	}
	return d, nil
}

// isKnown reports whether a name is a parameter of this client's or libpq's,
// rather than a setting of the session.
func isKnown(name string) bool {
	_, ok := envNames[name]
	return ok || strings.Contains(withoutEffect, " "+name+" ")
}

// parseConfig validates a connection string. It reads certificates and keys, to
// say early what is wrong with them, and touches nothing else.
func parseConfig(dsn string, env func(string) (string, bool), log func(string)) (*config, error) {
	values, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	p := &parameters{values: values, env: env}
	p.cagey = isURL(dsn) && userinfo(afterScheme(dsn)) < 0
	c := &config{env: env, log: log}
	steps := []func(*config, *parameters) error{
		readRefused, readTargets, readLogin, readTLS, readAuth, readSession, readPool, readSettings,
	}
	for _, step := range steps {
		if err := step(c, p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readRefused says no to what would be unsafe to leave out.
func readRefused(c *config, p *parameters) error {
	if name := p.take("service"); name != "" {
		return fmt.Errorf("service is %q, must be empty: service files are not supported; write the parameters into the dsn", name)
	}
	for _, name := range []string{"sslcrl", "sslcrldir"} {
		if value := p.take(name); value != "" {
			return fmt.Errorf("%s is %q, must be empty: certificate revocation lists are not supported", name, value)
		}
	}
	if value := p.take("requirepeer"); value != "" {
		return fmt.Errorf("requirepeer is %q, must be empty: it is not supported", value)
	}
	if _, err := p.oneOf("gssencmode", "disable", "prefer"); err != nil {
		return fmt.Errorf("%w: encryption by GSSAPI is not supported", err)
	}
	if _, err := p.oneOf("min_protocol_version", "3.0"); err != nil {
		return fmt.Errorf("%w: protocol 3.0 is the one supported", err)
	}
	if value := p.take("client_encoding"); value != "" {
		switch strings.ToUpper(strings.Replace(value, "-", "", -1)) {
		case "UTF8", "UNICODE", "AUTO":
		default:
			return p.bad("client_encoding", value, "UTF8")
		}
	}
	return nil
}

// readTargets lines up hosts, their addresses and their ports.
func readTargets(c *config, p *parameters) error {
	host, addr, port := p.take("host"), p.take("hostaddr"), p.take("port")
	hosts, ports := strings.Split(host, ","), strings.Split(port, ",")
	var addrs []string
	if addr != "" {
		addrs = strings.Split(addr, ",")
		if host == "" {
			hosts = addrs
		}
		if len(addrs) != len(hosts) {
			return p.bad("hostaddr", addr, fmt.Sprintf("%d addresses, as many as there are hosts", len(hosts)))
		}
	}
	if len(ports) > 1 && len(ports) != len(hosts) {
		return p.bad("port", port, fmt.Sprintf("one port, or %d, as many as there are hosts", len(hosts)))
	}
	for i := range hosts {
		t := target{host: hosts[i], port: ports[0]}
		if len(ports) > 1 {
			t.port = ports[i]
		}
		if t.port == "" {
			t.port = "5432"
		}
		n, err := strconv.Atoi(t.port)
		if err != nil || n < 1 || n > 65535 {
			return p.bad("port", t.port, "a number from 1 to 65535")
		}
		t.port = strconv.Itoa(n)
		if addrs != nil && addrs[i] != "" {
			if net.ParseIP(addrs[i]) == nil {
				return p.bad("hostaddr", addrs[i], "an IP address")
			}
			t.addr = addrs[i]
		}
		if t.host == "" {
			t.host = defaultHost()
		}
		c.targets = append(c.targets, t)
	}
	return nil
}

// defaultHost is the folder where a server of this machine has its socket.
func defaultHost() string {
	for _, folder := range []string{"/var/run/postgresql", "/private/tmp", "/tmp"} {
		if _, err := os.Stat(folder); err == nil {
			return folder
		}
	}
	return "localhost"
}

// readLogin finds out who logs in to what.
func readLogin(c *config, p *parameters) error {
	c.user, c.password, c.dbname = p.take("user"), p.take("password"), p.take("dbname")
	if c.user == "" {
		account, err := user.Current()
		if err != nil || account.Username == "" {
			return errors.New("user is empty, must be given: the operating system does not know the account's name")
		}
		c.user = account.Username
	}
	c.passfile = p.take("passfile")
	if c.passfile == "" {
		c.passfile = c.home(".pgpass")
	}
	return nil
}

// home is a path in the account's home folder, or "" if it has none.
func (c *config) home(path string) string {
	if home, _ := c.env("HOME"); home != "" {
		return home + "/" + path
	}
	return ""
}

// readSession takes what concerns connections and the choice of a host.
func readSession(c *config, p *parameters) error {
	var err error
	c.session, err = p.oneOf("target_session_attrs", "any", "read-write", "read-only", "primary", "standby", "prefer-standby")
	if err != nil {
		return err
	}
	seconds, err := p.number("connect_timeout", 0, 0)
	if err != nil {
		return fmt.Errorf("%w of seconds", err)
	}
	c.attempt = time.Duration(seconds) * time.Second
	balance, err := p.oneOf("load_balance_hosts", "disable", "random")
	if err != nil {
		return err
	}
	c.shuffle = balance == "random"
	on, err := p.oneOf("keepalives", "1", "0")
	if err != nil {
		return err
	}
	idle, err := p.number("keepalives_idle", 0, 0)
	if err != nil {
		return err
	}
	c.alive = time.Duration(idle) * time.Second
	if on == "0" {
		c.alive = -1
	}
	return nil
}

// readPool takes what pgx's pool would.
func readPool(c *config, p *parameters) error {
	var err error
	if c.pool.maxConns, err = p.number("pool_max_conns", 1, 0); err != nil {
		return err
	}
	if c.pool.maxLifetime, err = p.duration("pool_max_conn_lifetime"); err != nil {
		return err
	}
	if c.pool.idleTimeout, err = p.duration("pool_max_conn_idle_time"); err != nil {
		return err
	}
	mode, err := p.oneOf("default_query_exec_mode", "cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol")
	if err != nil {
		return err
	}
	statements, err := p.number("statement_cache_capacity", 0, 1)
	if err != nil {
		return err
	}
	c.unnamed = mode != "cache_statement" || statements == 0
	return nil
}

// readSettings keeps all that is left for the session.
func readSettings(c *config, p *parameters) error {
	c.settings = map[string]string{}
	name := p.take("application_name")
	if name == "" {
		name = p.values["fallback_application_name"]
	}
	if name != "" {
		c.settings["application_name"] = name
	}
	for _, name := range []string{"options", "datestyle", "timezone", "geqo"} {
		if value := p.take(name); value != "" {
			c.settings[name] = value
		}
	}
	for name, value := range p.values {
		if !isKnown(name) {
			c.settings[name] = value
		}
	}
	return nil
}

// startup is the message that opens a session.
func (c *config) startup() []byte {
	b := []byte("\x00\x00\x00\x00\x00\x03\x00\x00user\x00" + c.user + "\x00client_encoding\x00UTF8\x00")
	if c.dbname != "" {
		b = append(b, "database\x00"+c.dbname+"\x00"...)
	}
	names := make([]string, 0, len(c.settings))
	for name := range c.settings {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		b = append(b, name+"\x00"+c.settings[name]+"\x00"...)
	}
	b = append(b, 0)
	putLength(b, 0)
	return b
}
