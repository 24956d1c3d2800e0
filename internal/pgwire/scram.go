package pgwire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxIterations bounds what a server may make us compute. Its own default is 4,096.
const maxIterations = 10000000

// scram is one exchange of RFC 5802 with SHA-256 (RFC 7677).
type scram struct {
	mechanism string
	header    string // the gs2 header: what we say about channel binding
	binding   []byte // the channel binding data, for -PLUS
	bare      string // client-first-message-bare
	nonce     string // ours
	final     []byte // the server's signature that proves it knows the password
}

// scramLogIn logs in by the best of the mechanisms that the server offers.
func scramLogIn(c *conn, cfg *config, password string, offered []string) (*serverError, error) {
	s, err := newScram(offered, serverEndPoint(c, cfg.auth.binding), cfg.auth.binding)
	if err != nil {
		return nil, err
	}
	random := make([]byte, 18)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	s.begin("", base64.StdEncoding.EncodeToString(random))
	first := s.header + s.bare
	message := append([]byte(s.mechanism+"\x00"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(message[len(message)-4:], uint32(len(first)))
	if err := send(c, 'p', string(message)+first); err != nil {
		return nil, err
	}
	challenge, failure, err := nextSASL(c, authSASLNext)
	if failure != nil || err != nil {
		return failure, err
	}
	response, err := s.respond(challenge, password, c.deadline)
	if err != nil {
		return nil, err
	}
	if err := send(c, 'p', response); err != nil {
		return nil, err
	}
	verdict, failure, err := nextSASL(c, authSASLFinal)
	if failure != nil || err != nil {
		return failure, err
	}
	return nil, s.verify(verdict)
}

// nextSASL reads the server's next message of the exchange.
func nextSASL(c *conn, want uint32) (string, *serverError, error) {
	for {
		kind, body, err := next(c)
		switch {
		case err != nil:
			return "", nil, err
		case kind == 'N' || kind == 'S':
		case kind == 'E':
			return "", parseError(body), nil
		case kind == 'R' && len(body) >= 4 && binary.BigEndian.Uint32(body) == want:
			return string(body[4:]), nil, nil
		default:
			return "", nil, fmt.Errorf("the server broke off the authentication by SCRAM: %w", unexpected(kind))
		}
	}
}

// newScram picks the mechanism. endPoint is nil where the channel cannot be bound.
func newScram(offered []string, endPoint []byte, binding string) (*scram, error) {
	plus := false
	for _, mechanism := range offered {
		plus = plus || mechanism == "SCRAM-SHA-256-PLUS"
	}
	switch {
	case plus && endPoint != nil:
		return &scram{mechanism: "SCRAM-SHA-256-PLUS", header: "p=tls-server-end-point,,", binding: endPoint}, nil
	case binding == "require":
		return nil, errors.New("channel_binding is require, but the server does not offer it on this connection")
	case endPoint != nil:
		// We could have, it says: so nobody can have hidden the server's offer.
		return &scram{mechanism: "SCRAM-SHA-256", header: "y,,"}, nil
	}
	return &scram{mechanism: "SCRAM-SHA-256", header: "n,,"}, nil
}

// begin sets the first message. Postgres takes the user from the startup
// message and wants none here.
func (s *scram) begin(user, nonce string) {
	s.nonce = nonce
	s.bare = "n=" + user + ",r=" + nonce
}

// respond answers the server's challenge with a proof that we know the password.
func (s *scram) respond(challenge, password string, deadline time.Time) (string, error) {
	nonce := ""
	iterations := 0
	var salt []byte
	for _, attribute := range strings.Split(challenge, ",") {
		var err error
		switch {
		case strings.HasPrefix(attribute, "r="):
			nonce = attribute[2:]
		case strings.HasPrefix(attribute, "s="):
			salt, err = base64.StdEncoding.DecodeString(attribute[2:])
		case strings.HasPrefix(attribute, "i="):
			iterations, err = strconv.Atoi(attribute[2:])
		case strings.HasPrefix(attribute, "m="):
			err = errors.New("extension")
		}
		if err != nil {
			return "", errors.New("the server's challenge for SCRAM is malformed")
		}
	}
	if !strings.HasPrefix(nonce, s.nonce) || nonce == s.nonce || len(salt) == 0 {
		return "", errors.New("the server's challenge for SCRAM is malformed, or not for us")
	}
	if iterations < 1 || iterations > maxIterations {
		return "", fmt.Errorf("the server wants %d iterations of SCRAM, must be from 1 to %d", iterations, maxIterations)
	}
	salted, err := saltPassword(prepare(password), salt, iterations, deadline)
	if err != nil {
		return "", err
	}
	bound := base64.StdEncoding.EncodeToString(append([]byte(s.header), s.binding...))
	unproven := "c=" + bound + ",r=" + nonce
	everything := s.bare + "," + challenge + "," + unproven
	clientKey := mac(salted, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	proof := mac(storedKey[:], everything)
	subtle.XORBytes(proof, proof, clientKey)
	s.final = mac(mac(salted, "Server Key"), everything)
	return unproven + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks the server's last word.
func (s *scram) verify(verdict string) error {
	if strings.HasPrefix(verdict, "e=") {
		return errors.New("the server refuses the authentication by SCRAM: " + printable(verdict[2:]))
	}
	signature := strings.TrimPrefix(strings.SplitN(verdict, ",", 2)[0], "v=")
	given, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(given, s.final) {
		return errors.New("the server does not know the password: its signature in SCRAM is wrong")
	}
	return nil
}

// saltPassword is PBKDF2 for one block, called Hi in RFC 5802.
func saltPassword(password string, salt []byte, iterations int, deadline time.Time) ([]byte, error) {
	m := hmac.New(sha256.New, []byte(password))
	m.Write(salt)
	m.Write([]byte{0, 0, 0, 1})
	u := m.Sum(nil)
	salted := append([]byte(nil), u...)
	for i := 1; i < iterations; i++ {
		m.Reset()
		m.Write(u)
		u = m.Sum(u[:0])
		subtle.XORBytes(salted, salted, u)
		if i%8192 == 0 && !deadline.IsZero() && time.Now().After(deadline) {
			return nil, fmt.Errorf("the server wants %d iterations of SCRAM, which take too long", iterations)
		}
	}
	return salted, nil
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// prepare is SASLprep as far as it goes without Unicode's tables: other spaces
// become spaces, and what does not show is dropped.
func prepare(password string) string {
	if !utf8.ValidString(password) {
		return password
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == 0xA0 || r == 0x1680 || r >= 0x2000 && r <= 0x200B || r == 0x202F || r == 0x205F || r == 0x3000:
			return ' '
		case r == 0xAD || r == 0x34F || r == 0x1806 || r >= 0x180B && r <= 0x180D || r >= 0x200C && r <= 0x200D ||
			r == 0x2060 || r >= 0xFE00 && r <= 0xFE0F || r == 0xFEFF:
			return -1
		}
		return r
	}, password)
}

// serverEndPoint is the channel binding data tls-server-end-point of RFC 5929: a
// hash of the server's certificate. It is nil without TLS, for certificates
// that it is not defined for, and where it is not wanted.
func serverEndPoint(c *conn, binding string) []byte {
	secure, ok := c.nc.(*tls.Conn)
	if !ok || binding == "disable" {
		return nil
	}
	certs := secure.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil
	}
	var h hash.Hash
	switch certs[0].SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.SHA256WithRSA, x509.ECDSAWithSHA256, x509.SHA256WithRSAPSS:
		h = sha256.New()
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384, x509.SHA384WithRSAPSS:
		h = sha512.New384()
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512, x509.SHA512WithRSAPSS:
		h = sha512.New()
	default:
		return nil
	}
	h.Write(certs[0].Raw)
	return h.Sum(nil)
}
