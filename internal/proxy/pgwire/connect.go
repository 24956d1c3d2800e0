package pgwire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Without connect_timeout, these bound one attempt to connect, from the look-up of the host to the end of the
// login.
const (
	shortAttempt = 2 * time.Second  // if there is another address to try
	longAttempt  = 10 * time.Second // otherwise
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

// connectError describes failed attempts to connect.
type connectError struct {
	text    string // the errors of all attempts
	code    string // the last SQLSTATE, if the server reported an error
	network bool   // the connection failed before the server reported anything
	retry   bool   // an attempt with different encryption may succeed
	final   bool   // attempts with other hosts would fail as well
}

// networkError returns the error of a connection that failed before the server reported anything.
func networkError(text string) *connectError { return &connectError{text: text, network: true} }

// add adds the error of an attempt to connect to an address. The fields network and final describe the last
// attempt that was added.
func (e *connectError) add(address string, failure *connectError) {
	if e.text != "" {
		e.text += "; "
	}
	e.text += address + ": " + failure.text
	e.network = failure.network
	e.final = failure.final
	if failure.code != "" {
		e.code = failure.code
	}
}

// connect tries the addresses of the targets in order. connect returns a connection with a running watcher,
// or the errors of all attempts.
func connect(ctx context.Context, cfg *config, targets *targetMemory) (*conn, *connectError) {
	errs := &connectError{}
	for _, i := range targets.order(len(cfg.targets)) {
		c := connectTarget(ctx, cfg, targets, cfg.targets[i], errs)
		if c != nil || errs.network {
			targets.record(i, c != nil)
		}
		if c != nil {
			return c, nil
		}
		if errs.final || ctx.Err() != nil {
			break
		}
	}
	return nil, errs
}

// connectTarget tries the addresses of one target. If all fail, it adds their errors to errs and returns nil.
func connectTarget(ctx context.Context, cfg *config, targets *targetMemory, t target,
	errs *connectError) *conn {
	peers, err := resolve(ctx, t, cfg.attemptLimit(len(cfg.targets)))
	if err != nil {
		errs.add(t.String(), networkError(err.Error()))
	}
	for _, to := range peers {
		c, failure := connectPeer(ctx, cfg, targets, to, cfg.attemptLimit(len(cfg.targets)*len(peers)))
		if c != nil {
			return c
		}
		errs.add(to.address, failure)
		if failure.final || ctx.Err() != nil {
			break
		}
	}
	return nil
}

// attemptLimit returns the time limit of one attempt. It depends on the number of addresses to try.
func (c *config) attemptLimit(addresses int) time.Duration {
	switch {
	case c.attemptTimeout > 0:
		return c.attemptTimeout
	case addresses > 1:
		return shortAttempt
	}
	return longAttempt
}

// resolve returns the addresses of a target.
func resolve(ctx context.Context, t target, limit time.Duration) ([]peer, error) {
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
	var failure *connectError
	for _, enc := range cfg.encryptions(to.target) {
		c, latest := attempt(ctx, cfg, targets, to, enc)
		if c != nil {
			return c, nil
		}
		if failure == nil || !latest.network {
			failure = latest
		}
		if !latest.retry || ctx.Err() != nil {
			break
		}
	}
	return nil, failure
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

// attempt connects to an address, logs in and checks the session.
func attempt(ctx context.Context, cfg *config, targets *targetMemory, to peer,
	enc encryption) (*conn, *connectError) {
	raw, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, to.network, to.address)
	if err != nil {
		return nil, networkError(err.Error())
	}
	c := newConn(raw, to)
	c.generation = atomic.LoadInt32(&targets.generation)
	stop := context.AfterFunc(ctx, c.interrupt)
	c.deadline, _ = ctx.Deadline()
	_ = raw.SetDeadline(c.deadline)
	failure := startTLS(ctx, c, cfg, enc)
	if failure == nil {
		// If the Write fails, logIn may still read the reason, such as a refused client certificate.
		_, _ = c.nc.Write(cfg.startup())
		failure = logIn(c, cfg, cfg.passwordFor(to.target))
	}
	if failure == nil {
		failure = checkSession(ctx, c, cfg, targets)
	}
	if !stop() && failure == nil {
		failure = networkError(ctx.Err().Error())
	}
	if failure != nil {
		if ctx.Err() != nil && failure.network {
			failure.text = "no connection in time: " + failure.text
		}
		closeConn(c, false)
		return nil, failure
	}
	_ = raw.SetDeadline(time.Time{})
	go watch(c)
	startWatching(c)
	return c, nil
}

// startTLS starts TLS if enc requires or prefers TLS, and the server offers TLS.
func startTLS(ctx context.Context, c *conn, cfg *config, enc encryption) *connectError {
	if enc == plain {
		return nil
	}
	reply, err := requestTLS(c.raw)
	switch {
	case err != nil:
		return networkError("asking for TLS: " + err.Error())
	case reply == 'N' && enc == tlsIfOffered:
		return nil
	case reply == 'N':
		return &connectError{text: "the server does not offer TLS, which sslmode=" +
			cfg.tls.mode + " needs"}
	case reply != 'S':
		return &connectError{text: "the server cannot negotiate TLS", retry: true}
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

// requestTLS requests TLS from the server and returns the reply: 'S' for yes, 'N' for no.
func requestTLS(raw net.Conn) (byte, error) {
	reply := make([]byte, 1)
	_, err := raw.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"))
	if err == nil {
		_, err = io.ReadFull(raw, reply)
	}
	return reply[0], err
}

// checkSession checks that the session meets target_session_attrs. With several targets, it also checks that
// no other primary has replaced the server. It accepts a server that does not report its timeline.
func checkSession(ctx context.Context, c *conn, cfg *config, targets *targetMemory) *connectError {
	condition := map[string]string{
		"read-write": "NOT current_setting('transaction_read_only')::bool",
		"primary":    "NOT pg_catalog.pg_is_in_recovery()",
	}[cfg.session]
	if condition == "" {
		return nil
	}
	session, timeline := &pgdb.Statement{SQL: "SELECT 1 WHERE " + condition},
		&pgdb.Statement{SQL: pg.TimelineSQL}
	a := &pg.Attempt{Unnamed: true}
	pipeline(ctx, c, []*pgdb.Statement{session, timeline}, a)
	switch {
	case a.Err != nil:
		return &connectError{text: a.Err.Error(), code: timeline.Code, network: timeline.Code == ""}
	case session.Err != nil:
		return &connectError{text: session.Err.Error(), code: session.Code}
	case session.Rows == 0:
		return &connectError{text: "the server does not meet target_session_attrs=" + cfg.session}
	}
	columns, err := pg.Columns(timeline.Result)
	if len(cfg.targets) == 1 || timeline.Err != nil || err != nil || len(columns) != 1 {
		return nil
	}
	generation, ok := targets.recordTimeline(string(columns[0]))
	if !ok {
		return &connectError{text: pg.Replaced}
	}
	c.generation = generation
	return nil
}
