// Package pgwire is a small Postgres client for programs that cannot use a full driver, such as a Traefik
// plugin, which Yaegi interprets. It imports only the standard library.
//
// A Pool implements pgdb.DB over a bounded number of connections. A conn has one owner at a time: the dial
// that makes it, the pool while it is idle, or the call that acquired it. A call that finds no idle
// connection becomes a waiter and may start a dial. A call sends its statements as one pipeline.
//
// # Protocol
//
// The client speaks protocol 3.0, as Postgres 7.4 and all later versions do, over TCP, TLS and Unix sockets.
// Statements use the extended protocol, in one pipeline with a Sync after each transaction. Parameters are
// sent as text. Results are received in binary format. Exec uses the simple protocol.
//
// Authentication: trust, password, md5, SCRAM-SHA-256, SCRAM-SHA-256-PLUS (channel binding) over TLS, and
// client certificates. In SCRAM, the server must prove that it has the password. SCRAM fails for a password
// that SASLprep would change, such as one with spaces or invisible characters beyond ASCII.
//
// Not supported: COPY, LISTEN, transactions over several calls, and types that pgdb.Statement does not list.
//
// # Connection strings
//
// Open accepts URLs and keyword=value pairs as libpq does: several hosts, target_session_attrs (any,
// read-write or primary), every sslmode, channel_binding, the PG… environment variables and the password
// file. As in pgx, a parameter that libpq does not have is a setting of the session, such as search_path=app,
// and the file of a client's private key may be readable by others. Open reads the parameters pool_max_conns,
// pool_max_conn_lifetime and pool_max_conn_idle_time of pgx and ignores its other parameters, so one string
// serves both clients.
//
// Open refuses unsupported parameters that would be unsafe to ignore: service files, hostaddr, encrypted
// private keys, certificate revocation lists, TLS version bounds other than Go's (1.2 to 1.3),
// sslsni=0, load_balance_hosts=random, requirepeer, require_auth, ssl, sslcertmode, sslnegotiation=direct,
// gssencmode=require, and a client_encoding other than UTF8. A login fails if the server requires GSSAPI,
// SSPI, Kerberos or OAuth. With sslmode=verify-full, a server's certificate must have the host as a subject
// alternative name; a common name is not enough. Unlike libpq, Open reads no files in ~/.postgresql:
// sslrootcert, sslcert and sslkey name the files.
//
// Errors name a parameter and never quote its value, because a malformed string may have a password anywhere.
//
// # Prepared statements
//
// Each SQL text is prepared once on each connection, in the pipeline that first uses it. The statement's name
// contains a hash of the text. A transaction pooler such as PgBouncer runs each transaction in another server
// session, where the name may be missing or already exist. The server then refuses the statement, and the
// pool sends the transaction again without prepared statements. After two such refusals, the pool stops
// preparing statements. A pooler that tracks prepared statements causes no refusals (PgBouncer from 1.21, if
// configured).
//
// # Retries
//
// A transaction is sent again only if it certainly had no effect:
//   - A prepared statement was missing, existed already, or was out of date since a
//     table was altered.
//   - The server reported the end of the session before it started the transaction.
//   - Nothing of it was sent.
//
// If a connection is lost in any other way, it is unknown whether the transaction took effect, and its
// statements return the error.
//
// # Time
//
// A call waits for a connection for up to its timeout, and for the response for up to the timeout again. It
// also ends when its context ends. If the server has not responded then, another goroutine cancels the
// request on the server, until the server has ended the session. Connections are also made in other
// goroutines, so a connection that takes longer than the call serves a later call. Without connect_timeout,
// an attempt ends after 10 seconds, or after 2 seconds if there is another address to try. For 10 seconds, a
// host that did not respond is tried after the other hosts. A call does not check an idle connection, because
// the check would take a round trip. It need not: the watcher detects the end of a connection immediately,
// and TCP's keep-alive probes find a connection that a firewall has dropped.
//
// # Goroutines
//
// Each connection has one goroutine, its watcher. A connection that is being made or canceled has a second
// goroutine, and so has a request above 64 KiB while it is written. The number of connections therefore
// bounds the number of goroutines. All these goroutines recover from panics, because a panic in a goroutine
// ends Traefik.
//
// # Code for an interpreter
//
// Yaegi v0.16.1 interprets this package in Traefik. This interpreter shapes the code:
//   - A method call costs 1.7 µs, five times a function call, so the functions that
//     each statement needs take the connection as an argument.
//   - A function costs time for every variable and every value in it, even in branches
//     that do not run. So these functions are short and leave unusual cases to others,
//     even where that repeats a few lines.
//   - Each step of a loop costs time. So bytes.ReplaceAll reads many rows of equal
//     length in one step, and strings.Join, a strings.Replacer and json.Marshal build
//     arrays.
//   - Yaegi misinterprets some forms of code: a call beside another value in one
//     assignment, several conditions in one case, nil among several values, a nil
//     appended, a select, an errors.As to one of our types. The code avoids these
//     forms, and a test searches for them.
package pgwire
