package pgxdb_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// dsnTable has the parts that follow the DSN of a database, and the answer: "ok", or a part of the error.
// "ok" with psql means that psql connects with the same text.
var dsnTable = []struct{ text, want string }{
	{"", "ok with psql"},
	{"&application_name=x&connect_timeout=5", "ok with psql"},
	{"&keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3", "ok with psql"},
	{"&tcp_user_timeout=1000&fallback_application_name=x", "ok with psql"},
	{"&gssencmode=disable", "ok with psql"},
	{"&gssencmode=prefer", "ok with psql"},
	{"&channel_binding=prefer", "ok with psql"},
	{"&target_session_attrs=any", "ok with psql"},
	{"&target_session_attrs=read-write", "ok with psql"},
	{"&client_encoding=UTF8&ssl_min_protocol_version=TLSv1.2", "ok with psql"},
	{"&options=-c%20search_path%3Dpublic", "ok with psql"},
	{"&TimeZone=UTC&statement_timeout=5000&myapp.x=1&search_path=public", "ok"}, // psql lacks these
	{"&pool_max_conns=3&default_query_exec_mode=exec", "ok"},
	{"&gssencmode=require", "gssencmode in the dsn must be one of disable, prefer"},
	{"&hostaddr=127.0.0.1", "hostaddr in the dsn is not supported"},
	{"&load_balance_hosts=random", "load_balance_hosts in the dsn must be one of disable"},
	{"&sslcertmode=disable", "sslcertmode in the dsn must be one of allow"},
	{"&sslnegotiation=direct", "sslnegotiation in the dsn must be one of postgres"},
	{"&service=x", "service in the dsn is not supported"},
	{"&target_session_attrs=standby", "target_session_attrs in the dsn must be one of any"},
	{"&pgbouncer=true&connection_limit=1&schema=public", "pgbouncer in the dsn is of another program: leave"},
	{"&connection_limit=1", "write pool_max_conns=…, or the setting max_conns"},
	{"&schema=public", "write search_path=…"},
	{"&pool=5", "write pool_max_conns=…"},
	{"&sslaccept=accept_invalid_certs", "write sslmode=require"},
	{"&prepareThreshold=0", "leave it out"},
	{"&binary_parameters=yes", "leave it out"},
	{"&currentSchema=a", "write search_path=…"},
	{"&a%20secret=1", "a parameter's name must be letters"},
	{"&DATABASE_URL=postgres://u@h/d", "the parameter DATABASE_URL in the dsn holds a URL"},
	{"&PGHOST=h", "of a variable, such as DATABASE_URL, write the value alone"},
	{"&passfile=DIR/0600", "ok with psql"},
	{"&passfile=DIR/0640", "ok"}, // psql ignores what a group may read
	{"&passfile=DIR/0440", "ok"},
	{"&passfile=DIR/0644", "passfile has the mode 0644, must be for its owner and group alone"},
	{"&passfile=DIR/0604", "passfile has the mode 0604"},
	{"&password=p&passfile=DIR/none", "ok with psql"},
	{"&passfile=DIR/none", "passfile cannot be read: no such file"},
}

// A DSN has one meaning in both drivers, and with psql if psql takes it: it connects, or is refused with an
// error that names the parameter.
func TestDSNHasOneMeaning(t *testing.T) {
	t.Parallel()
	base, dir := cluster.Open(t), t.TempDir()
	for _, mode := range []os.FileMode{0o600, 0o640, 0o440, 0o644, 0o604} {
		path := filepath.Join(dir, fmt.Sprintf("%04o", mode))
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range dsnTable {
		dsn := base + strings.ReplaceAll(test.text, "DIR", dir)
		want, psql := strings.CutSuffix(test.want, " with psql")
		for driver, open := range map[string]func() (pgdb.DB, error){
			"pgwire": func() (pgdb.DB, error) { return pgwire.Open(dsn, pgwire.Options{}) },
			"pgxdb":  func() (pgdb.DB, error) { return pgxdb.Open(dsn, pgxdb.Options{}) },
		} {
			got := "ok"
			db, err := open()
			if err == nil {
				err = db.Run(t.Context(), time.Minute, []*pgdb.Statement{{SQL: "SELECT 1"}})
				db.Close()
			}
			if err != nil {
				got = err.Error()
			}
			if want == "ok" && got != want || !strings.Contains(got, want) {
				t.Errorf("%s, %q: %s, want %s", driver, test.text, got, want)
			}
		}
		if !psql {
			continue
		}
		psqlCommand := exec.CommandContext(t.Context(), "psql", "-c", "SELECT 1", dsn)
		if out, err := psqlCommand.CombinedOutput(); err != nil {
			t.Errorf("psql, %q: %v: %s, want it to connect", test.text, err, out)
		}
	}
}

// While the changed DSN of a file is not valid, new connections use the one before, and the operator is told
// once.
func TestRefusedDSNKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	base := cluster.Open(t)
	for _, driver := range []string{"pgwire", "pgxdb"} {
		var changed atomic.Bool
		renew := func() (string, error) {
			if changed.Load() {
				return base + "&connection_limit=1", nil
			}
			return base, nil
		}
		reports := make(chan string, 10)
		db, err := pgdb.DB(nil), error(nil)
		if driver == "pgwire" {
			db, err = pgwire.Open(base, pgwire.Options{Renew: renew, Logger: func(s string) { reports <- s }})
		} else {
			db, err = pgxdb.Open(base,
				pgxdb.Options{Renew: renew, Refused: func(err error) { reports <- err.Error() }})
		}
		if err != nil {
			t.Fatal(err)
		}
		run := func() error { return db.Run(t.Context(), time.Minute, []*pgdb.Statement{{SQL: "SELECT 1"}}) }
		for range 3 {
			await.Within(t, time.Minute, driver+": a connection", func() bool { return run() == nil })
			changed.Store(true)
			cluster.Execute(t, base, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
		await.Within(t, time.Minute, driver+": a connection", func() bool { return run() == nil })
		if text := <-reports; !strings.Contains(text, "connection_limit") || len(reports) > 0 {
			t.Errorf("%s: reports %q and %d more, want connection_limit once", driver, text, len(reports))
		}
		db.Close()
	}
}

// A parameter that the server does not know is an error of the configuration, and no outage.
func TestUnknownParameterIsNoOutage(t *testing.T) {
	t.Parallel()
	for driver, open := range drivers.All {
		for _, parameter := range []string{"&no_such_setting=1", "&no..such=1"} {
			db := open(t, cluster.Open(t)+parameter)
			store, err := postgres.New(db, postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour},
				Key: "k", Cost: 1}}
			err = store.Take(t.Context(), 10*time.Second, hits, make([]ratelimit.Decision, 1))
			if !errors.Is(err, pgdb.ErrConfiguration) || strings.Contains(err.Error(), "does not answer") {
				t.Errorf("%s, %s: error %v, want one of the configuration", driver, parameter, err)
			}
			store.Close()
		}
	}
}
