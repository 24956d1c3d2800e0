package pgwire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"strings"
	"time"
)

// How long one attempt to connect, from the look-up of the host to the end of
// the login, may take without connect_timeout: where there is another address
// to try, and where not.
const (
	shortAttempt = 2 * time.Second
	longAttempt  = 10 * time.Second
)

// peer is one address of a target.
type peer struct {
	target
	index   int // of the target
	network string
	address string
}

// encryption is how an attempt goes about TLS.
type encryption int

const (
	plain encryption = iota
	tlsIfOffered
	tlsOnly
)

// refusal is why an attempt failed.
type refusal struct {
	text    string
	code    string // SQLSTATE, if the server said it
	network bool   // the server did not get to speak
	retry   bool   // another encryption may do
	final   bool   // another host will not do
}

// connect tries the targets in order. It returns a connection that its watcher
// watches, or what went wrong everywhere and the SQLSTATE of the last that
// had one.
func connect(ctx context.Context, cfg *config, hosts *hostMemory) (*conn, *refusal) {
	sessions := []string{cfg.session}
	if cfg.session == "prefer-standby" {
		sessions = []string{"standby", "any"}
	}
	var all refusal
	for _, session := range sessions {
		var texts []string
		for _, i := range hosts.order(cfg) {
			c, why := connectTarget(ctx, cfg, i, session)
			if c != nil {
				hosts.note(i, true)
				return c, nil
			}
			if why.network {
				hosts.note(i, false)
			}
			texts = append(texts, why.text)
			if why.code != "" {
				all.code = why.code
			}
			if why.final || ctx.Err() != nil {
				break
			}
		}
		all.text = strings.Join(texts, "; ")
	}
	return nil, &all
}

// connectTarget tries the addresses of one target.
func connectTarget(ctx context.Context, cfg *config, index int, session string) (*conn, *refusal) {
	t := cfg.targets[index]
	limit := cfg.attempt
	if limit == 0 {
		limit = longAttempt
		if len(cfg.targets) > 1 {
			limit = shortAttempt
		}
	}
	peers, err := lookUp(ctx, t, index, limit)
	if err != nil {
		return nil, &refusal{text: t.String() + ": " + err.Error(), network: true}
	}
	if cfg.shuffle {
		rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	}
	if cfg.attempt == 0 && len(peers) > 1 {
		limit = shortAttempt
	}
	var texts []string
	last := &refusal{}
	for _, to := range peers {
		c, why := connectPeer(ctx, cfg, to, session, limit)
		if c != nil {
			return c, nil
		}
		texts = append(texts, to.address+": "+why.text)
		last = why
		if why.final || ctx.Err() != nil {
			break
		}
	}
	last.text = strings.Join(texts, "; ")
	return nil, last
}

// lookUp finds a target's addresses.
func lookUp(ctx context.Context, t target, index int, limit time.Duration) ([]peer, error) {
	if t.unix() {
		return []peer{{target: t, index: index, network: "unix", address: t.String()}}, nil
	}
	addresses := []string{t.addr}
	if t.addr == "" {
		ctx, stop := context.WithTimeout(ctx, limit)
		defer stop()
		var err error
		if addresses, err = net.DefaultResolver.LookupHost(ctx, t.host); err != nil {
			return nil, err
		}
	}
	var peers []peer
	for _, address := range addresses {
		peers = append(peers, peer{target: t, index: index, network: "tcp", address: net.JoinHostPort(address, t.port)})
	}
	return peers, nil
}

// connectPeer tries one address, with and without TLS as sslmode says.
func connectPeer(ctx context.Context, cfg *config, to peer, session string, limit time.Duration) (*conn, *refusal) {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	var why *refusal
	for _, way := range cfg.ways(to.target) {
		c, again := attempt(ctx, cfg, to, session, way)
		if c != nil {
			return c, nil
		}
		if why == nil || !again.network {
			why = again
		}
		if !again.retry || ctx.Err() != nil {
			break
		}
	}
	return nil, why
}

// ways are how to go about encryption, in the order in which to try them.
func (c *config) ways(t target) []encryption {
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

// attempt makes one connection from scratch.
func attempt(ctx context.Context, cfg *config, to peer, session string, way encryption) (*conn, *refusal) {
	dialer := &net.Dialer{KeepAlive: cfg.alive}
	raw, err := dialer.DialContext(ctx, to.network, to.address)
	if err != nil {
		return nil, &refusal{text: err.Error(), network: true}
	}
	c := newConn(raw, to)
	stop := context.AfterFunc(ctx, c.interrupt)
	c.deadline, _ = ctx.Deadline()
	why := (*refusal)(nil)
	if err := raw.SetDeadline(c.deadline); err != nil {
		why = &refusal{text: err.Error(), network: true}
	}
	if why == nil {
		why = encrypt(ctx, c, cfg, way)
	}
	if why == nil {
		why = greet(c, cfg, session)
	}
	if !stop() && why == nil {
		why = &refusal{text: ctx.Err().Error(), network: true}
	}
	if why == nil {
		if err := raw.SetDeadline(time.Time{}); err != nil {
			why = &refusal{text: err.Error(), network: true}
		}
	}
	if why != nil {
		if ctx.Err() != nil && why.network {
			why.text = "no connection in time: " + why.text
		}
		end(c, false)
		return nil, why
	}
	go watch(c)
	rest(c)
	return c, nil
}

// encrypt begins TLS, or not.
func encrypt(ctx context.Context, c *conn, cfg *config, way encryption) *refusal {
	if way == plain {
		return nil
	}
	if !cfg.tls.direct {
		if _, err := c.raw.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")); err != nil {
			return &refusal{text: err.Error(), network: true}
		}
		answer := make([]byte, 1)
		if _, err := io.ReadFull(c.raw, answer); err != nil {
			return &refusal{text: "asking for TLS: " + err.Error(), network: true}
		}
		switch {
		case answer[0] == 'N' && way == tlsIfOffered:
			return nil
		case answer[0] == 'N':
			return &refusal{text: "the server does not offer TLS, which sslmode=" + cfg.tls.mode + " needs"}
		case answer[0] != 'S':
			return &refusal{text: "the server does not know how to negotiate TLS", retry: true}
		}
	}
	settings, err := cfg.tls.config(c.peer.host)
	if err != nil {
		return &refusal{text: err.Error(), final: true}
	}
	secure := tls.Client(c.raw, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		return &refusal{text: "TLS: " + err.Error(), retry: way == tlsIfOffered}
	}
	c.nc, c.secure = secure, settings
	return nil
}

// greet logs in and sees whether the session is of the wanted kind.
func greet(c *conn, cfg *config, session string) *refusal {
	// Where this fails, the server has said why: that it does not like our
	// certificate, say. So read on.
	_, _ = c.nc.Write(cfg.startup())
	complaint, err := logIn(c, cfg, cfg.passwordFor(c.peer.target))
	if err == nil && complaint == nil {
		c.writer = session == "read-write" || session == "primary"
		complaint, err = checkSession(c, session)
	}
	switch {
	case complaint != nil:
		// Only with another host can this go away: the server is starting,
		// stopping or full. And only with another encryption this: it
		// has no rule for the likes of us.
		elsewhere := strings.HasPrefix(complaint.code, "57") || strings.HasPrefix(complaint.code, "53")
		return &refusal{text: complaint.String(), code: complaint.code, final: !elsewhere, retry: complaint.code == invalidAuthorization}
	case errors.Is(err, errSession):
		return &refusal{text: err.Error()}
	case err != nil:
		return &refusal{text: err.Error(), network: true}
	}
	return nil
}

var errSession = errors.New("another kind of server is wanted")

// checkSession asks what target_session_attrs wants to know.
func checkSession(c *conn, session string) (*serverError, error) {
	question, want := "", ""
	switch session {
	case "read-write":
		question, want = "SHOW transaction_read_only", "off"
	case "read-only":
		question, want = "SHOW transaction_read_only", "on"
	case "primary":
		question, want = "SELECT pg_catalog.pg_is_in_recovery()", "f"
	case "standby":
		question, want = "SELECT pg_catalog.pg_is_in_recovery()", "t"
	default:
		return nil, nil
	}
	if err := send(c, 'Q', question+"\x00"); err != nil {
		return nil, err
	}
	answer := ""
	var complaint *serverError
	for {
		kind, body, err := next(c)
		if err != nil {
			return nil, err
		}
		switch kind {
		case 'D':
			columns, err := parseRow(body, nil)
			if err != nil || len(columns) != 1 {
				return nil, unexpected(kind)
			}
			answer = string(columns[0])
		case 'E':
			complaint = parseError(body)
			if complaint.fatal() {
				return complaint, nil
			}
		case 'Z':
			if complaint == nil && answer != want {
				return nil, fmt.Errorf("target_session_attrs is %s: %w", session, errSession)
			}
			return complaint, nil
		case 'T', 'C', 'N', 'S', 'A':
		default:
			return nil, unexpected(kind)
		}
	}
}
