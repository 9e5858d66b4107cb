// Package permission has the tables of what each request needs, for every RPC and every route over
// HTTP. A request that is in no table needs to administer the whole broker. The tables are pure:
// package gate decides whether a client has what a request needs.
package permission
