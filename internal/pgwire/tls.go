package pgwire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// tlsSettings are the ssl… parameters. Files are read anew for each connection,
// so that they may be renewed.
type tlsSettings struct {
	mode     string // sslmode
	root     string // sslrootcert: a file, "system", or "" for none
	cert     string // sslcert and sslkey: files, or both ""
	key      string
	sni      bool
	direct   bool // sslnegotiation=direct
	min, max uint16
}

// tlsVersion takes a parameter that must be a version of TLS; "" is 0.
func tlsVersion(p *parameters, name string) (uint16, error) {
	value := p.take(name)
	switch value {
	case "":
		return 0, nil
	case "TLSv1":
		return tls.VersionTLS10, nil
	case "TLSv1.1":
		return tls.VersionTLS11, nil
	case "TLSv1.2":
		return tls.VersionTLS12, nil
	case "TLSv1.3":
		return tls.VersionTLS13, nil
	}
	return 0, p.bad(name, value, "one of TLSv1, TLSv1.1, TLSv1.2, TLSv1.3")
}

// readTLS takes the ssl… parameters, and reads the files to see that they are good.
func readTLS(c *config, p *parameters) error {
	s := &c.tls
	var err error
	s.root = p.take("sslrootcert")
	mode := "prefer"
	if s.root == "system" {
		mode = "verify-full"
	}
	s.mode = p.take("sslmode")
	switch s.mode {
	case "":
		s.mode = mode
	case "disable", "allow", "prefer", "require", "verify-ca", "verify-full":
	default:
		return p.bad("sslmode", s.mode, "one of disable, allow, prefer, require, verify-ca, verify-full")
	}
	if s.root == "system" && s.mode != "verify-full" {
		return p.bad("sslmode", s.mode, "verify-full where sslrootcert is system")
	}
	negotiation, err := p.oneOf("sslnegotiation", "postgres", "direct")
	if err != nil {
		return err
	}
	s.direct = negotiation == "direct"
	if s.direct && (s.mode == "disable" || s.mode == "allow" || s.mode == "prefer") {
		return p.bad("sslmode", s.mode, "require, verify-ca or verify-full where sslnegotiation is direct")
	}
	sni, err := p.oneOf("sslsni", "1", "0")
	if err != nil {
		return err
	}
	s.sni = sni == "1"
	certMode, err := p.oneOf("sslcertmode", "allow", "disable")
	if err != nil {
		return err
	}
	s.cert, s.key = p.take("sslcert"), p.take("sslkey")
	p.take("sslpassword") // of use for encrypted keys only, and those are refused
	if s.min, err = tlsVersion(p, "ssl_min_protocol_version"); err != nil {
		return err
	}
	if s.max, err = tlsVersion(p, "ssl_max_protocol_version"); err != nil {
		return err
	}
	if s.min != 0 && s.max != 0 && s.max < s.min {
		return errors.New("ssl_max_protocol_version must not be below ssl_min_protocol_version")
	}
	if s.mode == "disable" {
		s.root, s.cert, s.key = "", "", ""
		return nil
	}
	if certMode == "disable" {
		s.cert, s.key = "", ""
	} else if s.cert == "" && s.key == "" {
		cert, key := c.home(".postgresql/postgresql.crt"), c.home(".postgresql/postgresql.key")
		if exists(cert) && exists(key) {
			s.cert, s.key = cert, key
		}
	}
	if (s.cert == "") != (s.key == "") {
		return errors.New("sslcert and sslkey must be given together")
	}
	if root := c.home(".postgresql/root.crt"); s.root == "" && exists(root) {
		s.root = root
	}
	if s.mode == "verify-ca" && s.root == "" {
		return errors.New("sslmode verify-ca needs an sslrootcert: under the system's roots any server of any name would do; verify-full checks the name")
	}
	for _, t := range c.targets {
		if !t.unix() {
			_, err = s.config(t.host)
			return err
		}
	}
	return nil // unix sockets have no TLS
}

func exists(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}

// config is what a handshake with a host needs.
func (s *tlsSettings) config(host string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: s.min, MaxVersion: s.max}
	if t.MinVersion == 0 {
		t.MinVersion = tls.VersionTLS12
		if s.max != 0 && s.max < tls.VersionTLS12 {
			t.MinVersion = s.max
		}
	}
	if s.direct {
		t.NextProtos = []string{"postgresql"}
	}
	if s.cert != "" {
		pair, err := keyPair(s.cert, s.key)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{pair}
	}
	if s.root != "" && s.root != "system" {
		pem, err := os.ReadFile(s.root)
		if err != nil {
			return nil, fmt.Errorf("sslrootcert: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sslrootcert is %q, must be a PEM file with certificates", s.root)
		}
	}
	if s.sni && net.ParseIP(host) == nil {
		t.ServerName = host
	}
	switch {
	case s.mode == "verify-full" && s.sni:
		t.ServerName = host
	case s.mode == "verify-full":
		t.InsecureSkipVerify = true // verify does it; only so is no name sent
		t.VerifyConnection = func(state tls.ConnectionState) error { return verify(t.RootCAs, state, host) }
	case s.mode == "verify-ca" || s.mode == "require" && s.root != "": // no list: Yaegi reads its first only
		t.InsecureSkipVerify = true // verify does it, but for the name
		t.VerifyConnection = func(state tls.ConnectionState) error { return verify(t.RootCAs, state, "") }
	default:
		t.InsecureSkipVerify = true // as asked: these modes trust any certificate
	}
	return t, nil
}

// verify checks that a server's certificate was issued under one of the roots
// (nil: the system's), and for host, unless that is "".
func verify(roots *x509.CertPool, state tls.ConnectionState, host string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), DNSName: host}
	for _, cert := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err
}

// keyPair reads a client's certificate and its private key.
func keyPair(cert, key string) (tls.Certificate, error) {
	var none tls.Certificate
	certPEM, err := os.ReadFile(cert)
	if err != nil {
		return none, fmt.Errorf("sslcert: %w", err)
	}
	keyPEM, err := os.ReadFile(key)
	if err != nil {
		return none, fmt.Errorf("sslkey: %w", err)
	}
	text := string(keyPEM)
	if strings.Contains(text, "BEGIN ENCRYPTED PRIVATE KEY") || strings.Contains(text, "Proc-Type: 4,ENCRYPTED") {
		return none, fmt.Errorf("sslkey is %q, must be a key that is not encrypted (openssl pkey -in … -out … removes the password)", key)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return none, fmt.Errorf("sslcert is %q and sslkey is %q, must be a certificate and its key: %w", cert, key, err)
	}
	return pair, nil
}
