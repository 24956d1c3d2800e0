//go:build soak

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
)

// soakServer is one of two Postgres servers, and the network between it and the proxies.
type soakServer struct {
	*cluster.Cluster
	network *slownet.Proxy
	faults  *cluster.Faults
	logged  int // number of bytes of the server's log that were read
}

// soakServers are a primary and its synchronous standby.
type soakServers struct {
	t       *testing.T
	all     [2]*soakServer
	primary int
	dsn     string // of the primary, for the test
	proxied string // of the primary, for the proxies
}

// soakConnections is max_connections.
const soakConnections = 60

// startSoakServers starts the servers.
func startSoakServers(t *testing.T) *soakServers {
	t.Helper()
	s := &soakServers{t: t}
	var direct, through []string
	for i := range s.all {
		faults := cluster.NewFaults(t)
		c := cluster.Private(t, cluster.Options{
			HBA: replicating.HBA,
			Env: faults.Env,
			Config: map[string]string{
				"max_connections": fmt.Sprint(soakConnections), "max_wal_size": "256MB",
				"wal_retrieve_retry_interval": "200ms", "wal_keep_size": "512MB", "log_checkpoints": "off",
			},
		})
		network := slownet.Listen(t, fmt.Sprint("127.0.0.1:", c.Port()), 0)
		s.all[i] = &soakServer{Cluster: c, network: network, faults: faults}
		direct = append(direct, fmt.Sprint("127.0.0.1:", c.Port()))
		through = append(through, network.Address)
	}
	const dsn = "postgres://postgres@%s/postgres?sslmode=disable&target_session_attrs=read-write"
	s.dsn = fmt.Sprintf(dsn, strings.Join(direct, ","))
	s.proxied = fmt.Sprintf(dsn, strings.Join(through, ","))
	if err := s.follow(); err != nil {
		t.Fatal(err)
	}
	cluster.Execute(t, s.server().DSN("postgres"), "CREATE UNLOGGED TABLE soak_marker AS SELECT 1 AS n")
	return s
}

func (s *soakServers) server() *soakServer  { return s.all[s.primary] }
func (s *soakServers) standby() *soakServer { return s.all[1-s.primary] }

// follow makes the other server the synchronous standby of the primary.
func (s *soakServers) follow() error {
	if err := s.standby().Follow(context.Background(), s.server().Cluster); err != nil {
		return err
	}
	return s.run(s.server(), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
}

// run runs SQL on a server, which a fault may just have ended.
func (s *soakServers) run(server *soakServer, sql ...string) error {
	return runSQL(server.DSN("postgres")+"&application_name=soak", sql...)
}

// number returns the result of a query of the primary.
func (s *soakServers) number(sql string) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.server().DSN("postgres")+"&application_name=soak")
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// failOver kills the primary, promotes its standby, and makes the old primary its standby.
func (s *soakServers) failOver(away time.Duration) error {
	if err := s.server().Kill(); err != nil {
		return err
	}
	time.Sleep(away)
	s.primary = 1 - s.primary
	if err := s.run(s.server(), "SELECT pg_promote()"); err != nil {
		return err
	}
	err := s.run(s.server(), "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	if err != nil {
		return err
	}
	return s.follow()
}

// restoreServers waits until the primary has its standby and writes, and returns how often its unlogged
// tables were emptied since the last call. A server that has ended is started.
func (s *soakServers) restoreServers() (crashes int, err error) {
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var synchronous int64
		synchronous, err = s.number(
			"SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'")
		if err == nil && synchronous == 1 {
			break
		}
		if time.Now().After(until) {
			ofPrimary, _ := os.ReadFile(s.server().LogFile())
			ofStandby, _ := os.ReadFile(s.standby().LogFile())
			return 0, fmt.Errorf(
				"the servers do not recover: %d synchronous standbys, %s\n%s\nthe standby:\n%s", synchronous,
				fmt.Sprint(err),
				ofPrimary[max(0, len(ofPrimary)-3000):], ofStandby[max(0, len(ofStandby)-3000):])
		}
		for _, server := range []*soakServer{s.server(), s.standby()} {
			if !server.Runs() {
				if err := server.Restart(context.Background()); err != nil {
					return 0, err
				}
			}
		}
	}
	n, err := s.number("SELECT count(*) FROM soak_marker")
	if err != nil {
		return 0, err
	}
	if n == 0 {
		crashes = 1
		err = s.run(s.server(), "INSERT INTO soak_marker VALUES (1)")
	}
	log, readErr := os.ReadFile(s.server().LogFile())
	if s.server().logged > len(log) {
		s.server().logged = 0 // a start begins a new one
	}
	fresh := string(log[s.server().logged:])
	s.server().logged = len(log)
	return max(crashes, strings.Count(fresh, "was not properly shut down")), errors.Join(err, readErr)
}
