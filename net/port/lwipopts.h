/* How lwIP is configured: no operating system, one instance per core, memory from the core's heap, checksums as each
 * frame needs. */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

/* One thread per instance; interrupt handlers never call lwIP. */
#define NO_SYS               1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_SOCKET          0
#define LWIP_NETCONN         0

/* Memory: every object is its own block of the core's heap (kernel/memory.c), so nothing is sized in advance. */
#define MEM_ALIGNMENT        8
#define MEM_CUSTOM_ALLOCATOR 1
#define MEM_CUSTOM_MALLOC    heap_take
#define MEM_CUSTOM_FREE      heap_give
#define MEM_CUSTOM_CALLOC    heap_take_cleared
#define MEMP_MEM_MALLOC      1

/* Protocols. */
#define LWIP_IPV4                      1
#define LWIP_IPV6                      1
#define LWIP_TCP                       1
#define LWIP_UDP                       1
#define LWIP_ICMP                      1
#define LWIP_DHCP                      1
#define LWIP_DHCP_DOES_ACD_CHECK       0 /* it adds 4 to 7 s before an address is used */
#define LWIP_ACD                       0
#define LWIP_IPV6_AUTOCONFIG           1
#define LWIP_IPV6_DHCP6                0
#define LWIP_SINGLE_NETIF              1
#define LWIP_MULTICAST_TX_OPTIONS      0 /* nobody sends datagrams to groups */
#define LWIP_HAVE_LOOPIF               0
#define LWIP_NETIF_HOSTNAME            1
#define LWIP_NETIF_EXT_STATUS_CALLBACK 1
#define LWIP_NETIF_HWADDRHINT          1

/* Neighbours: as many by IPv6 as by IPv4. With more peers than entries each packet asks for its peer anew. */
#define ARP_TABLE_SIZE            64
#define ARP_QUEUEING              1
#define LWIP_ND6_NUM_NEIGHBORS    64
#define LWIP_ND6_NUM_DESTINATIONS 64

/* Fragments. A datagram of 65,507 bytes comes in 45. */
#define IP_REASSEMBLY            1
#define IP_FRAG                  1
#define IP_REASS_MAX_PBUFS       1024
#define MEMP_NUM_REASSDATA       32
#define IPV6_FRAG_COPYHEADER     1 /* needed where pointers have 64 bits */
#define LWIP_SUPPORT_CUSTOM_PBUF 1
#define PBUF_POOL_SIZE           0 /* received frames stay in the ring's buffers */

/* TCP. The window is what one connection may have in the receive path; what a peer sends out of order is bounded, or it
 * could pin all receive buffers. */
#define TCP_MSS                        8960
#define TCP_OVERSIZE                   1460
#define LWIP_WND_SCALE                 1
#define TCP_RCV_SCALE                  4
#define TCP_WND                        (256 * 1024)
#define TCP_WND_UPDATE_THRESHOLD       (TCP_WND_MAX(pcb) / 4 + pcb->held) /* see net/acks.h */
#define TCP_SND_BUF                    (256 * 1024)
#define TCP_SND_QUEUELEN               1024
#define TCP_SNDLOWAT                   16384 /* at most 0xffff - 4 * TCP_MSS */
#define TCP_SNDQUEUELOWAT              (TCP_SND_QUEUELEN / 4)
#define TCP_QUEUE_OOSEQ                1
#define TCP_OOSEQ_MAX_BYTES            (256 * 1024)
#define TCP_OOSEQ_MAX_PBUFS            192
#define LWIP_TCP_SACK_OUT              1
#define LWIP_TCP_RTO_TIME              1000 /* before there is a measurement: RFC 6298, 2.1; lwIP has 3 s */
#define LWIP_TCP_TIMESTAMPS            1
#define TCP_LISTEN_BACKLOG             1
#define TCP_DEFAULT_LISTEN_BACKLOG     255
#define SO_REUSE                       1 /* a port is listened on again while its old connections are in TIME_WAIT */
#define LWIP_DISABLE_TCP_SANITY_CHECKS 1 /* they compare the window with pools that are not used */

/* Checksums are switched per interface, and by net/netif.c before each frame that the device has checked. */
#define LWIP_CHECKSUM_CTRL_PER_NETIF 1
#define LWIP_INLINE_IP_CHKSUM        1          /* of a header to be sent: summed up while it is written */
#define LWIP_CHKSUM                  net_chksum /* port/chksum.h */

#define LWIP_STATS         1
#define LWIP_STATS_LARGE   1
#define LWIP_STATS_DISPLAY 0
#define MEM_STATS          0

/* The web server (apps/http.c is its file system; headers are part of its files). */
#define LWIP_HTTPD_FILE_EXTENSION    1 /* a file knows its memory */
#define LWIP_HTTPD_SUPPORT_EXTSTATUS 1 /* errors are answered */
#define LWIP_HTTPD_REQ_QUEUELEN      128
#define LWIP_HTTPD_MAX_REQ_LENGTH    4095
#define HTTPD_LIMIT_SENDING_TO_2MSS  0
/* Copied when it is queued: a file is closed when all of it is queued, which is before all of it has been sent. */
#define HTTP_IS_DATA_VOLATILE(hs) TCP_WRITE_FLAG_COPY

/* Of a packet that stands for several: how many bytes of TCP data each has (of one received: anything but 0). Of a
 * segment's first pbuf: how many bytes before what is in it are acknowledged, but not yet told to the application
 * (net/segment.c). */
#define LWIP_PBUF_CUSTOM_DATA         u16_t gso_size, acked;
#define LWIP_PBUF_CUSTOM_DATA_INIT(p) ((p)->gso_size = (p)->acked = 0)

#define LWIP_HOOK_FILENAME "net/hooks.h"
#define LWIP_HOOK_TCP_ISN(local_ip, local_port, remote_ip, remote_port)                                                \
    net_tcp_isn(local_ip, local_port, remote_ip, remote_port)
#define LWIP_HOOK_TCP_OUT_ADD_TCPOPTS(p, hdr, pcb, opts)            (net_tcp_mark(p, hdr, pcb), opts)
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, hdr, optlen, opt1, opt2, p) net_tcp_arrived(pcb, p)
#define LWIP_HOOK_ND6_GET_GW(netif, dest)                           net_nd6_gateway(netif, dest)
#endif
