package pgwire

import (
	"fmt"
	"os/user"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// reading is the meaning of a connection string, in terms that pgx shares.
type reading struct {
	Attempts                 []string // in order: host, port, and whether TLS is used
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
			delete(r.Settings, name) // libpq and this package ignore an empty value
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
	c, err := parseConfig(dsn, func(string) {})
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

// A connection string has the same meaning for this package and for pgx.
func TestDSNLikePgx(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, line := range readLines(t, "dsn_like_pgx.txt") {
		checkLikePgx(t, line.text)
	}
	for name, value := range map[string]string{"PGHOST": "eh", "PGPORT": "7", "PGUSER": "eu",
		"PGPASSWORD": "ep", "PGDATABASE": "ed", "PGSSLMODE": "disable", "PGAPPNAME": "ea",
		"PGCONNECT_TIMEOUT": "4", "PGTARGETSESSIONATTRS": "any", "PGOPTIONS": "-c a=b"} {
		t.Setenv(name, value)
	}
	checkLikePgx(t, "")
	checkLikePgx(t, "host=h port=1 user=u dbname=d password=p connect_timeout=5 options='-c c=d'")
}

// checkLikePgx checks that a connection string has the same meaning as for pgx, or is an error for both
// packages.
func checkLikePgx(t *testing.T, dsn string) {
	t.Helper()
	want, wantErr := readByPgx(dsn)
	got, gotErr := readByUs(dsn)
	if (gotErr == nil) != (wantErr == nil) {
		t.Errorf("%q: error %v, want pgx's %v", dsn, gotErr, wantErr)
	} else if !reflect.DeepEqual(got, want) && gotErr == nil {
		t.Errorf("%q means\n %+v, want pgx's\n %+v", dsn, got, want)
	}
}
