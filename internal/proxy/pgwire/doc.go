// Package pgwire is a small Postgres client for programs that cannot use a full driver, such as a Traefik
// plugin, which Yaegi interprets. It imports only the standard library.
//
// A Pool implements pgdb.DB over a bounded number of connections. A conn has one owner at a time: the dial
// that makes it, the pool while it is idle, or the call that acquired it. A call without an idle connection
// becomes a waiter, and a dial may start. A call sends its statements as one pipeline.
//
// # Protocol
//
// The client speaks protocol 3.0, as Postgres 7.4 and all later versions do, over TCP, TLS and Unix sockets.
// Statements use the extended protocol, in one pipeline with a Sync after each transaction. Parameters are
// sent as text, results are received in binary format. Exec uses the simple protocol.
//
// Authentication: trust, password, md5, SCRAM-SHA-256, SCRAM-SHA-256-PLUS (channel binding) over TLS, and
// client certificates. In SCRAM, the server must prove that it has the password. A password that SASLprep
// would change cannot log in by SCRAM: one with spaces or invisible characters beyond ASCII, for example.
//
// Not supported: COPY, LISTEN, transactions over several calls, and other types than those of pgdb.Statement.
//
// # Connection strings
//
// Open accepts URLs and keyword=value pairs as libpq does: several hosts, target_session_attrs (any,
// read-write or primary), every sslmode, channel_binding, the PG… environment variables and the password
// file. As in pgx, a parameter that libpq does not have is a setting of the session (search_path=app, for
// example), and others may be able to read a client's private key. Open reads pool_max_conns,
// pool_max_conn_lifetime and pool_max_conn_idle_time of pgx, and ignores its others, so that one string
// serves both clients.
//
// Open refuses what is not supported and would be unsafe to ignore: service files, hostaddr, encrypted
// private keys, certificate revocation lists, bounds of the TLS version other than Go's (1.2 to 1.3),
// sslsni=0, load_balance_hosts=random, requirepeer, require_auth, ssl, sslcertmode, sslnegotiation=direct,
// gssencmode=require, and a client_encoding other than UTF8. A login fails if the server asks for GSSAPI,
// SSPI, Kerberos or OAuth. With sslmode=verify-full, a server's certificate must have the host as a subject
// alternative name; a common name is not enough. Unlike libpq, Open reads no files in ~/.postgresql:
// sslrootcert, sslcert and sslkey name the files.
//
// Errors name a parameter, and never quote its value: a malformed string may have a password anywhere.
//
// # Prepared statements
//
// Each text is prepared once for each connection, in the pipeline in which it is first used. Its name is made
// from a hash of the text. A transaction pooler such as PgBouncer gives each transaction another session of
// the server, where the name may be missing or exist already. The server then refuses the statement, and the
// transaction is sent again without prepared statements. When that has happened twice, the pool stops
// preparing statements. If the pooler tracks prepared statements (PgBouncer from 1.21, if configured), it
// does not happen.
//
// # Retries
//
// A transaction is sent again only if it certainly had no effect:
//   - A prepared statement was missing, existed already, or was out of date since a
//     table was altered.
//   - The server ended the session, and said so, before it began the transaction.
//   - Nothing of it was sent.
//
// If a connection is lost in any other way, it is unknown whether the transaction took effect, and its
// statements have the error.
//
// # Time
//
// Every call ends when its context does. The request under way is then cancelled on the server, in another
// goroutine, and the connection is closed. Connections are made in other goroutines: a connection that takes
// longer than the call serves a later call. Without connect_timeout, an attempt ends after 10 seconds, or
// after 2 seconds if there is another address to try. A host that did not answer is tried last for 10
// seconds. An idle connection is not asked whether it still works, since that would cost the call a round
// trip: the end of a connection is detected at once, and TCP's keep-alive probes find a connection that a
// firewall has forgotten.
//
// # Goroutines
//
// Each connection has one goroutine, which detects at once that the connection ended. There is one for each
// connection being made or cancelled, and one for a request above 64 KiB while it is written. The number of
// connections bounds all of them. All recover from panics, since a panic in a goroutine ends Traefik.
//
// # Code for an interpreter
//
// Yaegi v0.16.1 interprets this package in Traefik. It shapes the code:
//   - A method call costs 1.7 µs, five times a function call, so the functions that
//     each statement needs take the connection as an argument.
//   - A function costs time for every variable and every value in it, whether the
//     program gets there or not. So these functions are short and leave unusual cases
//     to others, even where that repeats a few lines.
//   - Each step of a loop costs time, so rows of equal length are taken many at a
//     time with bytes.ReplaceAll, and arrays are built by strings.Join, a
//     strings.Replacer and json.Marshal.
//   - Yaegi gets some of the language wrong: a call beside another value in one
//     assignment, several conditions in one case, nil among several values, a nil
//     appended, a select, an errors.As to one of our types. The code avoids them
//     where one would expect them; a test looks for them.
package pgwire
