package pgwire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Without connect_timeout, one attempt to connect, from the look-up of the host to
// the end of the login, may take shortAttempt if there is another address to try,
// and longAttempt otherwise.
const (
	shortAttempt = 2 * time.Second
	longAttempt  = 10 * time.Second
)

// keepAlive is the time between TCP's keep-alive probes, which find connections that a firewall has dropped.
const keepAlive = 15 * time.Second

// peer is one address of a target.
type peer struct {
	target
	network string
	address string
}

// encryption selects whether an attempt uses TLS.
type encryption int

const (
	plain encryption = iota
	tlsIfOffered
	tlsOnly
)

// connectError describes a failed attempt to connect.
type connectError struct {
	text    string
	code    string // the SQLSTATE, if the server reported an error
	network bool   // the connection failed before the server reported anything
	retry   bool   // an attempt with another encryption may succeed
	final   bool   // an attempt with another host would fail as well
}

// connect tries the targets in order. It returns a connection with a running watcher, or an error with the
// failure of each target and the last SQLSTATE.
func connect(ctx context.Context, cfg *config, targets *targetMemory) (*conn, *connectError) {
	var all connectError
	var texts []string
	for _, i := range targets.order(len(cfg.targets)) {
		c, failed := connectTarget(ctx, cfg, targets, cfg.targets[i])
		if c != nil {
			targets.record(i, true)
			return c, nil
		}
		if failed.network {
			targets.record(i, false)
		}
		texts = append(texts, failed.text)
		if failed.code != "" {
			all.code = failed.code
		}
		if failed.final || ctx.Err() != nil {
			break
		}
	}
	all.text = strings.Join(texts, "; ")
	return nil, &all
}

// attemptLimit returns the bound of one attempt, which depends on the number of addresses to try.
func (c *config) attemptLimit(addresses int) time.Duration {
	switch {
	case c.attemptTimeout > 0:
		return c.attemptTimeout
	case addresses > 1:
		return shortAttempt
	}
	return longAttempt
}

// connectTarget tries the addresses of one target.
func connectTarget(ctx context.Context, cfg *config, targets *targetMemory, t target) (*conn,
	*connectError) {
	peers, err := lookUp(ctx, t, cfg.attemptLimit(len(cfg.targets)))
	if err != nil {
		return nil, &connectError{text: t.String() + ": " + err.Error(), network: true}
	}
	var texts []string
	last := &connectError{}
	for _, to := range peers {
		c, failed := connectPeer(ctx, cfg, targets, to, cfg.attemptLimit(len(cfg.targets)*len(peers)))
		if c != nil {
			return c, nil
		}
		texts = append(texts, to.address+": "+failed.text)
		last = failed
		if failed.final || ctx.Err() != nil {
			break
		}
	}
	last.text = strings.Join(texts, "; ")
	return nil, last
}

// lookUp finds a target's addresses.
func lookUp(ctx context.Context, t target, limit time.Duration) ([]peer, error) {
	if t.unix() {
		return []peer{{target: t, network: "unix", address: t.String()}}, nil
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	addresses, err := net.DefaultResolver.LookupHost(ctx, t.host)
	var peers []peer
	for _, address := range addresses {
		peers = append(peers, peer{target: t, network: "tcp", address: net.JoinHostPort(address, t.port)})
	}
	return peers, err
}

// connectPeer tries one address with each encryption that sslmode permits.
func connectPeer(ctx context.Context, cfg *config, targets *targetMemory, to peer,
	limit time.Duration) (*conn, *connectError) {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	var failed *connectError
	for _, enc := range cfg.encryptions(to.target) {
		c, latest := attempt(ctx, cfg, targets, to, enc)
		if c != nil {
			return c, nil
		}
		if failed == nil || !latest.network {
			failed = latest
		}
		if !latest.retry || ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// encryptions returns the encryptions to try, in order.
func (c *config) encryptions(t target) []encryption {
	switch {
	case t.unix() || c.tls.mode == "disable":
		return []encryption{plain}
	case c.tls.mode == "allow":
		return []encryption{plain, tlsOnly}
	case c.tls.mode == "prefer":
		return []encryption{tlsIfOffered, plain}
	}
	return []encryption{tlsOnly}
}

// attempt connects to an address, logs in, and checks the session.
func attempt(ctx context.Context, cfg *config, targets *targetMemory, to peer,
	enc encryption) (*conn, *connectError) {
	raw, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, to.network, to.address)
	if err != nil {
		return nil, &connectError{text: err.Error(), network: true}
	}
	c := newConn(raw, to)
	c.generation = atomic.LoadInt32(&targets.generation)
	stop := context.AfterFunc(ctx, c.interrupt)
	c.deadline, _ = ctx.Deadline()
	_ = raw.SetDeadline(c.deadline)
	failed := startTLS(ctx, c, cfg, enc)
	if failed == nil {
		failed = startSession(c, cfg)
	}
	if failed == nil {
		failed = checkSession(ctx, c, cfg.session)
	}
	if failed == nil && len(cfg.targets) > 1 && cfg.session != "any" {
		failed = checkTimeline(ctx, c, targets)
	}
	if !stop() && failed == nil {
		failed = &connectError{text: ctx.Err().Error(), network: true}
	}
	if failed != nil {
		if ctx.Err() != nil && failed.network {
			failed.text = "no connection in time: " + failed.text
		}
		closeConn(c, false)
		return nil, failed
	}
	_ = raw.SetDeadline(time.Time{})
	go watch(c)
	startWatching(c)
	return c, nil
}

// startTLS starts TLS if enc requires or prefers it and the server offers it.
func startTLS(ctx context.Context, c *conn, cfg *config, enc encryption) *connectError {
	if enc == plain {
		return nil
	}
	reply, err := requestTLS(c.raw)
	switch {
	case err != nil:
		return &connectError{text: "asking for TLS: " + err.Error(), network: true}
	case reply == 'N' && enc == tlsIfOffered:
		return nil
	case reply == 'N':
		return &connectError{text: "the server does not offer TLS, which sslmode=" +
			cfg.tls.mode + " needs"}
	case reply != 'S':
		return &connectError{text: "the server does not know how to negotiate TLS", retry: true}
	}
	settings, err := cfg.tls.config(c.peer.host)
	if err != nil {
		return &connectError{text: err.Error(), final: true}
	}
	secure := tls.Client(c.raw, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		return &connectError{text: "TLS: " + err.Error(), retry: enc == tlsIfOffered}
	}
	c.nc, c.secure = secure, settings
	return nil
}

// requestTLS asks the server for TLS, and returns its reply: 'S' for yes.
func requestTLS(raw net.Conn) (byte, error) {
	reply := make([]byte, 1)
	_, err := raw.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"))
	if err == nil {
		_, err = io.ReadFull(raw, reply)
	}
	return reply[0], err
}

// startSession sends the StartupMessage and logs in.
func startSession(c *conn, cfg *config) *connectError {
	// If the Write fails, the server may have sent the reason, such as a refused client certificate.
	_, _ = c.nc.Write(cfg.startup())
	reported, err := logIn(c, cfg, cfg.passwordFor(c.peer.target))
	switch {
	case reported != nil:
		// A server that is starting, stopping or full says nothing about other hosts. A server
		// without an entry for this client in pg_hba.conf may have one for another encryption.
		elsewhere := strings.HasPrefix(reported.code, "57") || strings.HasPrefix(reported.code, "53")
		return &connectError{text: reported.String(), code: reported.code, final: !elsewhere,
			retry: reported.code == pg.InvalidAuthorization}
	case err != nil:
		return &connectError{text: err.Error(), network: true}
	}
	return nil
}

// checkSession asks the server whether the session is as target_session_attrs requires.
func checkSession(ctx context.Context, c *conn, session string) *connectError {
	condition := map[string]string{
		"read-write": "NOT current_setting('transaction_read_only')::bool",
		"primary":    "NOT pg_catalog.pg_is_in_recovery()",
	}[session]
	if condition == "" {
		return nil
	}
	st, failed := askServer(ctx, c, "SELECT 1 WHERE "+condition)
	switch {
	case failed != nil:
		return failed
	case st.Err != nil:
		return &connectError{text: st.Err.Error(), code: st.Code}
	case st.Rows == 0:
		return &connectError{text: "target_session_attrs is " + session + ": another kind of " +
			"server is wanted"}
	}
	return nil
}

// askServer runs a statement on a new connection.
func askServer(ctx context.Context, c *conn, sql string) (*pgdb.Statement, *connectError) {
	st := &pgdb.Statement{SQL: sql}
	failed := pipeline(ctx, c, []*pgdb.Statement{st}, true)
	if failed != nil && failed.err != nil {
		return nil, &connectError{text: failed.err.Error(), code: failed.code, network: failed.code == ""}
	}
	return st, nil
}

// checkTimeline returns an error for a primary that another one has replaced. It accepts a server that does
// not report its timeline.
func checkTimeline(ctx context.Context, c *conn, targets *targetMemory) *connectError {
	st, failed := askServer(ctx, c, pg.TimelineSQL)
	if failed != nil {
		return failed
	}
	columns, err := pg.Columns(st.Result)
	if st.Err != nil || err != nil || len(columns) != 1 {
		return nil
	}
	generation, ok := targets.current(string(columns[0]))
	if !ok {
		return &connectError{text: pg.Replaced}
	}
	c.generation = generation
	return nil
}
