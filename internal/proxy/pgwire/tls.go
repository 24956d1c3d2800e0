package pgwire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsSettings holds the ssl… parameters. Files are read for each connection, so that they can be renewed.
type tlsSettings struct {
	mode string // sslmode
	root string // sslrootcert: a file, "system", or "" for none
	cert string // sslcert and sslkey: two files, or both ""
	key  string
}

// tls takes the ssl… parameters.
func (p *parameters) tls() tlsSettings {
	modes := []string{"prefer", "disable", "allow", "require", "verify-ca", "verify-full"}
	s := tlsSettings{root: p.remove("sslrootcert"), cert: p.remove("sslcert"), key: p.remove("sslkey")}
	if s.root == "system" { // these roots certify any server, so the name must be checked
		modes = modes[5:]
	}
	s.mode = p.oneOf("sslmode", modes...)
	if s.mode == "disable" {
		return tlsSettings{mode: s.mode}
	}
	if s.mode == "verify-ca" && s.root == "" {
		p.fail("sslmode", "verify-full, or there must be an sslrootcert: verify-ca does not check the name, "+
			"and the system's roots certify anybody")
	}
	if (s.cert == "") != (s.key == "") {
		p.fail("sslcert and sslkey", "given together")
	}
	return s
}

// config returns the TLS configuration for a handshake with a host.
func (s *tlsSettings) config(host string) (*tls.Config, error) {
	t := &tls.Config{ServerName: host}
	if s.cert != "" {
		cert, err := readFile("sslcert", s.cert)
		if err != nil {
			return nil, err
		}
		key, err := readFile("sslkey", s.key)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("sslcert and sslkey must be a certificate and its key, which must not be "+
				"encrypted: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	if s.root != "" && s.root != "system" {
		pem, err := readFile("sslrootcert", s.root)
		if err != nil {
			return nil, err
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("sslrootcert must be a PEM file with certificates")
		}
	}
	// Go checks the certificate and the name in it, unless InsecureSkipVerify is set.
	t.InsecureSkipVerify = s.mode != "verify-full"
	if s.mode == "verify-ca" || s.mode == "require" && s.root != "" {
		t.VerifyConnection =
			func(state tls.ConnectionState) error { return verifyChain(t.RootCAs, state.PeerCertificates) }
	}
	return t, nil
}

// readFile reads the file that a parameter names. Its error does not quote the name of the file, because a
// malformed connection string may have a password there.
func readFile(parameter, name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", parameter, errors.Unwrap(err))
	}
	return data, nil
}

// verifyChain checks that one of the roots issued the server's certificate. verifyChain does not check the
// name.
func verifyChain(roots *x509.CertPool, certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("the server sent no certificate")
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range certs[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := certs[0].Verify(options)
	return err
}
