package pgxdb_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestSlowWrite: a connection on which a write took long can be used again. pgx reads in
// the background during such a write, and goes on after it.
func TestSlowWrite(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go answerEarly(listener)
	db := open(t, "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable")
	defer db.Close()
	for _, size := range []int{1 << 25, 1} {
		done := make(chan error, 1)
		go func() {
			statement := pgdb.Statement{SQL: "SELECT $1", Args: []any{strings.Repeat("x", size)}, Unnamed: true}
			done <- db.Run(context.Background(), []*pgdb.Statement{&statement})
		}()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("an argument of %d bytes: %v", size, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("an argument of %d bytes: no answer", size)
		}
	}
}

// answerEarly is a server of one connection. It answers a statement when it has read the
// first message of it, and reads the rest a moment later. It also answers a guard of package session, which is prepared.
func answerEarly(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	server := pgproto3.NewBackend(conn, conn)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for server.Flush() == nil {
		message, err := server.Receive()
		for ; err == nil; message, err = server.Receive() {
			if parse, ok := message.(*pgproto3.Parse); ok && parse.Name == "" {
				break
			} else if ok {
				server.Send(&pgproto3.ParseComplete{})
				server.Send(&pgproto3.ParameterDescription{})
				server.Send(&pgproto3.NoData{})
			}
			if bind, ok := message.(*pgproto3.Bind); ok && bind.PreparedStatement != "" {
				server.Send(&pgproto3.BindComplete{})
				server.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
			}
		}
		if err != nil {
			return
		}
		server.Send(&pgproto3.ParseComplete{})
		server.Send(&pgproto3.BindComplete{})
		server.Send(&pgproto3.NoData{})
		server.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
		server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if server.Flush() != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
