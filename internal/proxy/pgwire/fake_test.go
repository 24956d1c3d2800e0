package pgwire

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The tests against a fake server can also run interpreted, so they use only Go that Yaegi supports. In a
// loop over fake servers, each server has a subtest, because Yaegi confuses a function literal in a loop with
// the previous one if that still runs in another goroutine.

// fakeServer follows a script, which may break the protocol.
type fakeServer struct {
	t        *testing.T
	listener net.Listener
	script   func(*fakeSession)
	accepted atomic.Int32
	open     atomic.Int32
	cancels  chan []byte // the keys of CancelRequests
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
}

// fakeSession is one connection of a fake server, from its login on.
type fakeSession struct {
	net.Conn
	server  *fakeServer
	number  int
	kind    uint32 // the kind of the first message: 196608 is protocol 3.0
	startup []byte // the body of the first message
}

// newFake starts a server that accepts every login and then runs script. newFake returns the server and its
// connection string.
func newFake(t *testing.T, script func(*fakeSession)) (*fakeServer, string) {
	t.Helper()
	return newRawFake(t, func(s *fakeSession) {
		s.welcome()
		script(s)
	})
}

// newRawFake starts a server that runs script after any first message except a CancelRequest.
func newRawFake(t *testing.T, script func(*fakeSession)) (*fakeServer, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{t: t, listener: listener, script: script, cancels: make(chan []byte, 100),
		conns: map[net.Conn]bool{}}
	f.wg.Add(1)
	go f.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		f.mu.Lock()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f, "postgres://me:sEcReT@" + listener.Addr().String() + "/db?sslmode=disable"
}

func (f *fakeServer) accept() {
	defer f.wg.Done()
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[c] = true
		f.mu.Unlock()
		f.wg.Add(1)
		go f.serve(&fakeSession{Conn: c, server: f})
	}
}

func (f *fakeServer) serve(s *fakeSession) {
	defer f.wg.Done()
	defer func() {
		_ = s.Close()
		f.mu.Lock()
		delete(f.conns, s.Conn)
		f.mu.Unlock()
	}()
	s.kind, s.startup = s.first()
	if s.kind == 0 {
		return
	}
	if s.kind == 80877102 {
		select {
		case f.cancels <- s.startup:
		default: // full, because most tests do not read it
		}
		return
	}
	s.number = int(f.accepted.Add(1))
	f.open.Add(1)
	defer f.open.Add(-1)
	f.script(s)
}

// first reads the first message of a client. kind is 0 at the end of the connection.
func (s *fakeSession) first() (kind uint32, body []byte) {
	var head [8]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return 0, nil
	}
	body = make([]byte, binary.BigEndian.Uint32(head[:])-8)
	if _, err := io.ReadFull(s, body); err != nil {
		return 0, nil
	}
	return binary.BigEndian.Uint32(head[4:]), body
}

// msg returns a message of the protocol.
func msg(kind byte, body string) string {
	b := append([]byte{kind, 0, 0, 0, 0}, body...)
	putLength(b, 1)
	return string(b)
}

// Messages of a server.
var (
	msgReady  = msg('Z', "I")
	msgParsed = msg('1', "")
	msgBound  = msg('2', "")
	msgNoData = msg('n', "")
	msgDone   = msg('C', "SELECT 1\x00")
	msgNoise  = msg('N', "SNOTICE\x00MHello\x00\x00") + msg('S', "a\x00b\x00") +
		msg('A', "\x00\x00\x00\x01c\x00p\x00")
	msgOneInt        = msg('T', "\x00\x01"+"n\x00"+field(20))
	msgFirstResponse = msgParsed + msgBound + msgNoData + msgDone + msgReady
	msgResponse      = msgBound + msgDone + msgReady
)

// field returns the description of a column after its name.
func field(oid uint32) string {
	b := make([]byte, 18)
	binary.BigEndian.PutUint32(b[6:], oid)
	b[17] = 1
	return string(b)
}

func msgError(severity, code, text string) string {
	return msg('E', "S"+severity+"\x00V"+severity+"\x00C"+code+"\x00M"+text+"\x00\x00")
}

func msgAuth(number uint32, rest string) string {
	return msg('R', string(binary.BigEndian.AppendUint32(nil, number))+rest)
}

// msgRow returns the message of a row. A column "NULL" becomes NULL.
func msgRow(columns ...string) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
	for _, c := range columns {
		if c == "NULL" {
			b = append(b, "\xff\xff\xff\xff"...)
			continue
		}
		b = binary.BigEndian.AppendUint32(b, uint32(len(c)))
		b = append(b, c...)
	}
	return msg('D', string(b))
}

// write sends text. write does nothing if the connection has ended.
func (s *fakeSession) write(text string) { _, _ = s.Conn.Write([]byte(text)) }

// welcome accepts the login.
func (s *fakeSession) welcome() {
	s.write(msgAuth(0, "") + msg('S', "server_version\x0015\x00") + msg('K',
		"\x00\x00\x00\x07key!") + msgReady)
}

// message reads one message. kind is 0 at the end of the connection.
func (s *fakeSession) message() (kind byte, body []byte) {
	var head [5]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return 0, nil
	}
	body = make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	if _, err := io.ReadFull(s, body); err != nil {
		return 0, nil
	}
	return head[0], body
}

// request reads messages up to a Sync and returns their kinds, such as PDBES. request returns "" at the end
// of the connection.
func (s *fakeSession) request() string {
	kinds := ""
	for {
		kind, _ := s.message()
		if kind == 0 || kind == 'X' {
			return ""
		}
		kinds += string(rune(kind))
		if kind == 'S' || kind == 'Q' {
			return kinds
		}
	}
}

// serveAll responds to every request without rows, until the connection ends.
func serveAll(s *fakeSession) {
	for {
		switch kinds := s.request(); {
		case kinds == "":
			return
		case kinds == "Q":
			s.write(msgDone + msgReady)
		case kinds[0] == 'P':
			s.write(msgFirstResponse)
		default:
			s.write(msgResponse)
		}
	}
}

// waitForEnd waits until the connection ends.
func waitForEnd(s *fakeSession) { _, _ = io.Copy(io.Discard, s.Conn) }

// open opens a pool. The end of the test closes it.
func open(t testing.TB, dsn string, o Options) *Pool {
	t.Helper()
	p, err := Open(dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	p.uses = 1 << 30 // a fake server does not expect a guard
	t.Cleanup(p.Close)
	return p
}

// testTimeout bounds the wait for an event.
const testTimeout = time.Minute

func stmt(sql string, args ...any) *pgdb.Statement {
	return &pgdb.Statement{SQL: sql, Args: args}
}

// run runs statements, and fails the test if one fails.
func run(t testing.TB, p *Pool, statements ...*pgdb.Statement) {
	t.Helper()
	if !runInGoroutine(t, p, statements...) {
		t.FailNow()
	}
}

// tryRun runs statements, and returns the error of Run.
func tryRun(t testing.TB, p *Pool, statements ...*pgdb.Statement) error {
	return p.Run(t.Context(), testTimeout, statements)
}

// runInGoroutine is like run but does not end the test, so other goroutines may call it. runInGoroutine
// reports success.
func runInGoroutine(t testing.TB, p *Pool, statements ...*pgdb.Statement) bool {
	t.Helper()
	if err := tryRun(t, p, statements...); err != nil {
		t.Error(err)
		return false
	}
	for _, st := range statements {
		if st.Err != nil {
			t.Errorf("%s: error %v, want nil", st.SQL, st.Err)
			return false
		}
	}
	return true
}
