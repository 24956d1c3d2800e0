package pgwire

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// replay is a connection to a server that has already sent all its bytes.
type replay struct {
	unread []byte
	piece  int // the largest number of bytes of a Read
	wrote  int
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.unread) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(b[:min(len(b), r.piece)], r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

func (r *replay) Write(b []byte) (int, error)      { r.wrote += len(b); return len(b), nil }
func (r *replay) Close() error                     { return nil }
func (r *replay) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (r *replay) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (r *replay) SetDeadline(time.Time) error      { return nil }
func (r *replay) SetReadDeadline(time.Time) error  { return nil }
func (r *replay) SetWriteDeadline(time.Time) error { return nil }

// twoNumbers describes rows that the client reads many at a time.
var twoNumbers = msg('T', "\x00\x02a\x00"+field(20)+"b\x00"+field(1184))

// FuzzFramesCauseNoFalseSuccess sends any bytes to the client: in the login, in responses to pipelines and to
// SQL text, and without a request. The client must not panic, must end, must not allocate much memory, and
// must not report that a statement without a response has succeeded.
func FuzzFramesCauseNoFalseSuccess(f *testing.F) {
	login := msgAuth(0, "") + msg('K', "\x00\x00\x00\x07key!") + msgReady
	row := msgParsed + msgBound + msg('T', "\x00\x02a\x00"+field(20)+"b\x00"+field(25)) +
		msgRow("12345678", "x") + msgRow("NULL", "NULL") + msgDone + msgReady
	f.Add([]byte(login+row+msgResponse), uint16(1000))
	f.Add([]byte(msgAuth(5, "salt")+login+msgParsed+msgBound+msgOneInt+msgRow("12345678")+msgRow(
		"NULL")+msgDone+msgReady+msgBound+msgRow("12345678")+msgDone+msgReady), uint16(7))
	f.Add([]byte(msgAuth(10, "SCRAM-SHA-256\x00\x00")+msgAuth(11, "r=x,s=W22Z,i=4096")), uint16(1))
	f.Add([]byte(login+msgNoise+msgParsed+msgBound+msgError("ERROR", "22012", "no")+msgReady+msgResponse),
		uint16(3))
	f.Add([]byte(login+msgError("FATAL", "57P01", "bye")), uint16(100))
	f.Add([]byte(login+"D\x00\xff\xff\xff"), uint16(100))
	f.Add([]byte(login+msgParsed+msgBound+"D\xff\xff\xff\xff"), uint16(2))
	f.Add([]byte(login+msgParsed+msgBound+twoNumbers+msgDone+msgReady+
		msgParsed+msgBound+msgDone+msgReady+msgBound+msgRow("aaaaaaaa", "bbbbbbbb")+
		msgRow("cccccccc", "dddddddd")+msg('D',
		"\x00\x02\x00\x00\x00\x07aaaaaaaa\x00\x00\x00\x08bbbbbbbb")+msgRow("NULL",
		"dddddddd")+msgDone+msgReady), uint16(50))
	f.Add([]byte(msgAuth(3, "")+msg('v', "")+msgNoise), uint16(100))
	f.Fuzz(func(t *testing.T, sent []byte, piece uint16) {
		if len(sent) > 1<<16 {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cfg := &config{user: "me", password: "sEcReT", settings: map[string]string{}}
		line := &replay{unread: sent, piece: int(piece) + 1}
		c := newConn(line, peer{})
		c.deadline = time.Now().Add(10 * time.Millisecond) // bounds the iterations of SCRAM
		if logIn(c, cfg, cfg.password) == nil {
			for i := 0; i < 3; i++ {
				statements := []*pgdb.Statement{stmt("A", "x"), stmt("B"), stmt("A", "y")}
				statements[1].Joined = i > 0
				unread := c.w - c.r + len(line.unread)
				a := &pg.Attempt{}
				pipeline(t.Context(), c, statements, a)
				read := unread - (c.w - c.r + len(line.unread))
				good := 0
				for _, st := range statements {
					if st.Err == nil {
						good++
					} else if errors.Is(st.Err, errPending) && len(a.Retry) == 0 {
						t.Fatal("a statement is pending after pipeline, want a result, an error or a retry")
					}
				}
				end := len(sent) - (c.w - c.r + len(line.unread))
				ready := bytes.Count(sent[end-read:end], []byte("Z\x00\x00\x00\x05"))
				if statements[1].Joined && statements[2].Err == nil {
					ready++ // one ReadyForQuery for two statements
				}
				if good > ready {
					t.Fatalf("%d statements succeeded, want at most %d, the number of responses", good, ready)
				}
				if a.Err != nil {
					break
				}
				failure := simpleQuery(t.Context(), c, "C")
				if failure != nil && failure.EndsConnection() || c.r != c.w {
					break
				}
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Fatalf("%d bytes allocated for %d from the server, want at most 8 MiB", n, len(sent))
		}
	})
}

// FuzzDSNErrorsHidePassword passes Open any string, and any string around a password. Open must return
// targets with hosts and ports, or an error without the password.
func FuzzDSNErrorsHidePassword(f *testing.F) {
	for _, dsn := range []string{
		"postgres://u:p@h:1,h2:2/d?sslmode=disable&x=y", "host=h port=1 password='a b' user=u\\ v",
		"postgres://[::1]:5432/d", "postgres://u@/d?host=/tmp",
		"", " ", "'", "postgres://%", "hostaddr=1.2.3.4 require_auth=!md5",
		"sslmode=verify-full sslrootcert=system",
	} {
		f.Add(dsn)
	}
	const secret = "S3cr3tOfMine"
	f.Fuzz(func(t *testing.T, dsn string) {
		for _, whole := range []string{
			dsn, "postgres://u:" + secret + "@" + dsn, "postgres://u:" + secret + dsn,
			dsn + "password=" + secret, "password=" + secret + dsn,
			"password='" + secret + dsn, dsn + "?password=" + secret,
		} {
			p, err := Open(whole, Options{})
			if err == nil {
				for _, target := range p.cfg.targets {
					if target.host == "" || target.port == "" {
						t.Errorf("Open(%q): target %+v, want a host and a port", whole, target)
					}
				}
				p.Close()
				continue
			}
			if err.Error() == "" || !strings.Contains(dsn, secret[:4]) &&
				strings.Contains(err.Error(), secret) {
				t.Errorf("Open(%q): error %v, want one without the password", whole, err)
			}
		}
	})
}
