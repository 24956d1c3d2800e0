// Package sessions lets tests that connect very often reuse the sessions of Postgres. A new session reads the
// catalog and compiles the functions again, which takes longer than most statements of a test.
package sessions

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// resetSQL removes what a session has that a new one lacks, except plans. Its rows are others than at the
// start of the session if new sessions have other settings.
const resetSQL = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; UNLISTEN *; " +
	"SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP; " +
	"SELECT setconfig FROM pg_db_role_setting WHERE setdatabase IN (0, (SELECT oid FROM pg_database " +
	"WHERE datname = current_database()))"

// pool is a proxy to a server. Each client has a session of its own, which an earlier client may have used.
type pool struct {
	target string
	mu     sync.Mutex
	idle   map[string][]*session // by keyOf of the start-up message; nil after the test
	used   map[string]int        // how many sessions clients use
}

// session is a connection to the server. It belongs to one client or is idle.
type session struct {
	net.Conn
	from     *bufio.Reader // reads messages of the server
	greeting []byte        // the messages of the server at the start
	clean    []byte        // the rows of resetSQL in a new session; nil if the server asks for a password
}

// Reuse returns another DSN of the same database until the test's end. A connection to it uses a session that
// an earlier one with the same settings has ended. A connection that ends while a transaction or a
// statement runs ends its session.
func Reuse(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pool{target: u.Host, idle: make(map[string][]*session), used: make(map[string]int)}
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, idle := range p.idle {
			for _, s := range idle {
				_ = s.Close()
			}
		}
		p.idle = nil
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// serve connects one client to a session.
func (p *pool) serve(client net.Conn) {
	defer client.Close()
	from := bufio.NewReader(client)
	start, err := readMessage(from, 0)
	if isRequest(start, 5679) { // TLS, which clients of tests do not need
		_, _ = client.Write([]byte("N"))
		start, err = readMessage(from, 0)
	}
	if err != nil {
		return
	}
	key := keyOf(start)
	s := p.take(key)
	for s != nil && !s.reset() { // because of what other sessions have changed in the meantime
		p.end(key, s, false)
		s = p.take(key)
	}
	if s == nil {
		if s, err = p.begin(start); err != nil {
			p.end(key, nil, false)
			return
		}
	}
	p.end(key, s, s.forward(client, from) && s.reset())
}

// isRequest reports whether a client's first message is a request with a code, and not a start.
func isRequest(message []byte, code uint32) bool {
	return len(message) >= 8 && binary.BigEndian.Uint32(message[4:]) == 1234<<16|code
}

// keyOf returns the settings of a start-up message, sorted, because pgx sends them in any order.
func keyOf(start []byte) string {
	fields := strings.Split(string(start[8:]), "\x00")
	var settings []string
	for i := 0; i+1 < len(fields); i += 2 {
		settings = append(settings, fields[i]+"="+fields[i+1])
	}
	slices.Sort(settings)
	return strings.Join(settings, "\x00")
}

// take returns an idle session with a key, or nil for a new one. While others are in use, take waits for a
// moment, because a client does not wait until the pool has its session. The caller calls end.
func (p *pool) take(key string) *session {
	for attempt := 1; ; attempt++ {
		p.mu.Lock()
		idle := p.idle[key]
		if len(idle) > 0 || p.used[key] == 0 || attempt == 30 {
			defer p.mu.Unlock()
			p.used[key]++
			if len(idle) == 0 {
				return nil
			}
			p.idle[key] = idle[:len(idle)-1]
			return idle[len(idle)-1]
		}
		p.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// end makes a session idle, or closes a session that is not clean.
func (p *pool) end(key string, s *session, isClean bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[key]--
	if isClean && p.idle != nil {
		p.idle[key] = append(p.idle[key], s)
	} else if s != nil {
		_ = s.Close()
	}
}

// begin makes a new session.
func (p *pool) begin(start []byte) (*session, error) {
	conn, err := net.Dial("tcp", p.target)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(start); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &session{Conn: conn, from: bufio.NewReader(conn)}
	message, err := readMessage(s.from, 1)
	isTrusted := err == nil && message[0] == 'R' && binary.BigEndian.Uint32(message[5:]) == 0
	s.greeting = message
	for isTrusted && err == nil && message[0] != 'Z' {
		message, err = readMessage(s.from, 1)
		s.greeting = append(s.greeting, message...)
	}
	if isTrusted && err == nil {
		s.clean = s.rows(resetSQL)
	}
	return s, nil
}

// reset resets the session, and reports whether it is then like a new one.
func (s *session) reset() bool { return s.clean != nil && bytes.Equal(s.rows(resetSQL), s.clean) }

// rows returns the messages with the rows of SQL, or nil if the session has ended.
func (s *session) rows(sql string) (rows []byte) {
	query := binary.BigEndian.AppendUint32([]byte("Q"), uint32(len(sql)+5))
	if _, err := s.Write(append(append(query, sql...), 0)); err != nil {
		return nil
	}
	for {
		switch message, err := readMessage(s.from, 1); {
		case err != nil:
			return nil
		case message[0] == 'Z':
			return rows
		case message[0] == 'D':
			rows = append(rows, message...)
		}
	}
}

// forward forwards messages between a client and the session until the client ends. It reports whether the
// session is then outside a transaction, and has answered everything.
func (s *session) forward(client net.Conn, from *bufio.Reader) (isIdle bool) {
	if _, err := client.Write(s.greeting); err != nil {
		return false
	}
	answered, status := 0, byte('I')
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			message, err := readMessage(s.from, 1)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return // the client has ended
			}
			if err == nil && message[0] == 'Z' {
				answered, status = answered+1, message[5]
			}
			if err == nil {
				_, err = client.Write(message)
			}
			if err != nil {
				_ = client.Close()
				return
			}
		}
	}()
	asked, isOpen := 0, false
	for {
		message, err := readMessage(from, 1)
		if err != nil || message[0] == 'X' {
			break
		}
		isOpen = message[0] != 'Q' && message[0] != 'S'
		if !isOpen {
			asked++
		}
		if _, err := s.Write(message); err != nil {
			break
		}
	}
	_ = s.SetReadDeadline(time.Unix(1, 0))
	<-ended
	err := s.SetReadDeadline(time.Time{})
	return err == nil && asked == answered && !isOpen && status == 'I'
}

// readMessage reads a message of the protocol: its type, if it has one, its length, and its content.
func readMessage(from *bufio.Reader, typeLength int) ([]byte, error) {
	header, err := from.Peek(typeLength + 4)
	if err != nil {
		return nil, err
	}
	message := make([]byte, typeLength+int(binary.BigEndian.Uint32(header[typeLength:])))
	_, err = io.ReadFull(from, message)
	return message, err
}
