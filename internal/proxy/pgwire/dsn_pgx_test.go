package pgwire

import (
	"fmt"
	"os"
	"os/user"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// reading is the meaning of a connection string, in terms that pgx shares.
type reading struct {
	Attempts                 []string // in order: host, port, and whether with TLS
	User, Password, Database string
	Settings                 map[string]string
	Timeout                  time.Duration
}

func readByPgx(dsn string) (reading, error) {
	c, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return reading{}, err
	}
	r := reading{User: c.User, Password: c.Password, Database: c.Database, Settings: c.RuntimeParams,
		Timeout: c.ConnectTimeout}
	if account, err := user.Current(); err == nil && r.User == "" {
		r.User = account.Username // pgx forgets the default for postgres://%20@h
	}
	for _, name := range []string{"application_name", "options"} {
		if r.Settings[name] == "" {
			delete(r.Settings, name) // it is not a setting to libpq and us
		}
	}
	add := func(host string, port uint16, tls bool) {
		r.Attempts = append(r.Attempts, fmt.Sprintf("%s %d %v", host, port, tls))
	}
	add(c.Host, c.Port, c.TLSConfig != nil)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port, f.TLSConfig != nil)
	}
	return r, nil
}

func readByUs(dsn string) (reading, error) {
	c, err := parseConfig(dsn, os.LookupEnv, func(string) {})
	if err != nil {
		return reading{}, err
	}
	r := reading{User: c.user, Password: c.passwordFor(c.targets[0]), Database: c.dbname,
		Settings: c.settings, Timeout: c.attemptTimeout}
	for _, t := range c.targets {
		for _, way := range c.encryptions(t) {
			r.Attempts = append(r.Attempts, fmt.Sprintf("%s %s %v", t.host, t.port, way != plain))
		}
	}
	return r, nil
}

// clearEnv takes away what the environment would add.
func clearEnv(t *testing.T) {
	for _, pair := range os.Environ() {
		if name := strings.SplitN(pair, "=", 2)[0]; strings.HasPrefix(name, "PG") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", t.TempDir())
}

func TestDSNLikePgx(t *testing.T) {
	clearEnv(t)
	for _, dsn := range []string{
		"", "host=localhost", "host=/tmp", "host=h1,h2 port=1,2", "host=h1,h2 port=1",
		"host=h1,,h2 port=1,,3", "port=1", "  \t\n", "database=d", "user=", "host= port=",
		"postgres://", "postgres:///d", "postgres://u:p@h:1/d", "postgres://u:p@h1:1,h2:2/d?sslmode=disable",
		"postgres://h1,h2:2",
		"postgres://[::1]:1,[fe80::1]/d", "postgres:///d?host=/tmp&port=5", "postgres://%2Ftmp:1/d",
		"postgres://u:p%40%3a@h/d?application_name=x%20y",
		"postgres://h/?connect_timeout=5&search_path=a,b", "postgres://h?user=u&password=p&dbname=d",
		"postgres://h?user=u&password=p&database=d",
		"postgres://u:a:b?c#d@h", "postgres://:p@h", "postgres://h1:1,h2,h3:3/d",
		"postgres://[fe80::1%25eth0]/d", "postgres://h?application_name=a+b%20c&",
		"postgres://h/d?search_path=1&search_path=2", "postgres://h/d?password=p@ss", " host = h\n " +
			"port\t= 1 ", `password=a\ b\'c\\ user=u`,
		`password= user=u`, `password=`, `host=a\`, "user= host=h", `password='a b\'c\\d' user=u`,
		"host=h sslmode=disable", "host=h sslmode=allow", "host=h sslmode=prefer", "host=h sslmode=require",
		"host=h sslmode=verify-full",
		"host=h sslmode=", "host=/tmp,h sslmode=prefer",
		`password='a\'b' user=u\ v options='-c x=y'`, "host=h target_session_attrs=read-write",
		"host=h target_session_attrs=x", "host=h port=x",
		"host=h channel_binding=disable",
		"host=h passfile=/none",
		"host=h user=u password=a=b", "host=h connect_timeout=x",
		"host=h connect_timeout=-1", "x", "host='h",
	} {
		want, wantErr := readByPgx(dsn)
		got, gotErr := readByUs(dsn)
		if (gotErr == nil) != (wantErr == nil) {
			t.Errorf("%q: error %v, pgx's %v", dsn, gotErr, wantErr)
		} else if !reflect.DeepEqual(got, want) && gotErr == nil {
			t.Errorf("%q:\n %+v, pgx:\n %+v", dsn, got, want)
		}
	}
}

// quote writes a value for a name=value pair.
func quote(s string, quoted bool) string {
	s = strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s)
	if quoted || s == "" {
		return "'" + s + "'"
	}
	return strings.NewReplacer(" ", `\ `, "\t", "\\\t", "\n", "\\\n").Replace(s)
}
